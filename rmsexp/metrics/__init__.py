"""Beam search, BLEU and chrF, and retrieval metrics. They use no code of models or tasks."""
