"""Interleaved timing: of whole training steps, of their norm layers alone (replay), and of single layers."""
