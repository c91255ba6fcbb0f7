"""Helpers that several test files share: synthetic records, small tasks and models, assertions."""
