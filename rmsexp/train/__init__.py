"""The trainer: loop, clock, checkpoints and loggers. It does not depend on a particular task or norm."""
