"""Interleaved timing: of whole training steps, and of single layers."""
