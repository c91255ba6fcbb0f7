"""The files of a run: written, read, continued, and (frames) as data frames with their statistics."""
