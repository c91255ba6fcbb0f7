"""Shared by several test files: synthetic records, small tasks and models, assertions."""
