"""The check of several processes, ``python scripts/distributed_equality.py``: its runs and its kills."""

import distributed_equality
import pytest

from rmsexp import config


@pytest.mark.parametrize("scale", distributed_equality.SCALES)
@pytest.mark.parametrize("task", distributed_equality.TINY)
def test_micro_batches_divide_neither_the_batch_nor_the_processes_and_noise_is_on(task: str, scale: str) -> None:
    cfg = config.job(distributed_equality.words_of(task, "rms", 40, scale)).config
    _, parts = cfg.parts
    assert all(parts % size for size in (2, 3, 4))
    assert task == "transformer" or cfg.batch_size % parts
    noise = {key: value for key, value in vars(cfg.model).items() if key == "noise" or key.endswith("dropout")}
    assert all(noise.values()), noise
