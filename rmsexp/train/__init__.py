"""The trainer: loop, clock, records, checkpoints. It knows no task and no norm."""
