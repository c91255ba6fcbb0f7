"""The trainer: loop, training step, checkpoints and loggers. It does not depend on a particular task or norm."""
