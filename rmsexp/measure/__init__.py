"""Measuring: interleaved blocks of steps, replayed norm layers, whole training steps, single layers."""
