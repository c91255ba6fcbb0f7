"""The trainer: loop, clock, records, checkpoints. It depends on no particular task or norm."""
