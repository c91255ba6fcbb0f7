"""One file a task: its schema (``Config``), data, model, objective, metrics and target. The file's name is its name.

A task's class is called ``Task`` and follows :class:`rmsexp.train.task.Task`; ``Task.optimizer(model)`` makes the
optimiser that its recipe asks for, and ``config.schedule`` is its schedule.
"""
