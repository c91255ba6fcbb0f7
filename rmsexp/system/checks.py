"""Checks of the values of options. Each raises ValueError with a message that names the key and says what is valid.

None passes the checks of numbers: the type of a key says whether it may be None.
"""

import difflib
import math
from collections.abc import Collection, Iterable

MOST = 10**12  # largest integer that an option may have by default: no machine does so many steps in a lifetime
LARGEST_FLOAT = 3e38  # PyTorch cannot convert much larger numbers to float32
LARGEST_WIDTH = 10**6  # of a layer: a square weight of this width has 4 terabytes
LARGEST_BEAM = 1000  # a larger beam takes minutes for a single sentence
MOST_LAYERS = 10_000  # of a model: to construct as many takes minutes
# Keys of other programs: their names -> the key here, and what to write, if that is not the key alone
ELSEWHERE = (
    ("epoch epochs max_epochs num_epochs num_train_epochs steps n_steps iters", "max_steps", "max_steps=N, in batches"),
    ("learning_rate", "optim.lr"),
    ("bs batch", "batch_size"),
    ("grad_clip clip_norm max_grad_norm", "optim.clip"),
    ("wd weight_decay", "optim.weight_decay"),
    ("wd weight_decay", "optim.lr", "optim.lr and the like: this task has no weight decay"),
    ("optimizer optimiser", "optim.lr", "optim.lr and the like, and for language_model optim.name"),
    ("seeds", "seed", "-m seed=0,1,2"),
    ("norms", "norm", "-m norm=ln,rms"),
    ("model arch", "task", "task=NAME, which brings its model and data"),
    ("data dataset", "data.name", "data.name (other data for the task) or task"),
    ("output output_dir out_dir save_dir log_dir", "results"),
    ("resume checkpoint", "force", "the same command again: it continues; force=true begins anew"),
    ("wandb tensorboard", "logger", "logger=wandb or logger=tensorboard"),
    ("gpu gpus cuda", "device", "device=cuda; for several GPUs torchrun --nproc-per-node=N -m rmsexp"),
    ("amp fp16 bf16 dtype", "precision"),
    ("jobs n_jobs workers", "threads", "-m hydra/launcher=joblib hydra.launcher.n_jobs=N"),
)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?", where X is the known word most like ``word`` (optim.lr for lr), or ""."""
    known = list(known)
    ending = [name for name in known if name.endswith(f".{word}")]
    close = ending or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def right_key(key: str, known: Iterable[str]) -> str:
    """Return "; write X" for a key of other programs (``ELSEWHERE``) whose key here is known, else :func:`nearest`."""
    known, name = list(known), key.rpartition(".")[2]
    written = next((entry[-1] for entry in ELSEWHERE if name in entry[0].split() and entry[1] in known), None)
    return nearest(key, known) if written is None else f"; write {written}"


def choice(key: str, value: str | None, options: Collection[str | None]) -> None:
    if value not in options:
        known = [option for option in options if option is not None]
        raise ValueError(f"{key}={value} is not known{nearest(str(value), known)} (one of {', '.join(known)})")


def positive(key: str, value: float | None, most: float = LARGEST_FLOAT) -> None:
    _check(value is None or 0 < value < math.inf, key, "be a finite number greater than 0", value)
    _check(value is None or value <= most, key, f"be at most {most}", value)


def at_least(key: str, value: float | None, least: float, most: int = MOST) -> None:
    """Check that a number is at least ``least``, an integer at most ``most``, and a float in the range of float32."""
    kind, largest = ("", most) if isinstance(value, int) else ("a finite number of ", LARGEST_FLOAT)
    _check(value is None or least <= value < math.inf, key, f"be {kind}at least {least}", value)
    _check(value is None or value <= largest, key, f"be at most {largest}", value)


def finite(key: str, value: float | None) -> None:
    _check(value is None or math.isfinite(value), key, "be a finite number", value)


def fraction(key: str, value: float | None) -> None:
    _check(value is None or 0 < value <= 1, key, "lie in (0, 1]", value)


def probability(key: str, value: float) -> None:
    _check(0 <= value < 1, key, "lie in [0, 1)", value)


def not_empty(key: str, value: str) -> None:
    if not value.strip():
        raise ValueError(f"{key} must not be empty")


def _check(valid: bool, key: str, must: str, value: float | None) -> None:
    if not valid:
        raise ValueError(f"{key} must {must}, got {value}")
