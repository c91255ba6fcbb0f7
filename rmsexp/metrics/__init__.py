"""Beam search, BLEU and retrieval metrics. They depend on no model and no task."""
