"""Checks of the values of options. Each raises ValueError with a message that names the key and says what is valid."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence

MOST = 10**12  # largest integer that an option may have by default: no machine does so many steps in a lifetime
LARGEST_FLOAT = 3e38  # PyTorch cannot convert much larger numbers to float32
LARGEST_WIDTH = 10**6  # of a layer: a square weight of this width has 4 terabytes
LARGEST_BEAM = 1000  # a larger beam takes minutes for a single sentence
MOST_LAYERS = 10_000  # of a model: to construct as many takes minutes
STEPS = "max_steps=N (the run ends there) or schedule.steps=N (the whole schedule); a step is a batch"
# Keys of other programs: (their names, without dots; ours; what to write, if that is not the key alone).
ELSEWHERE: tuple[tuple[str, ...], ...] = (
    (
        "epochs epoch max_epochs num_epochs n_epochs nepochs num_train_epochs steps n_steps num_steps",
        "max_steps",
        STEPS,
    ),
    ("nsteps total_steps train_steps iters iter iterations max_iters n_iters num_iterations", "max_steps", STEPS),
    ("learning_rate base_lr init_lr max_lr", "optim.lr"),
    ("bs batch train_batch_size", "batch_size"),
    ("grad_accum accumulation accumulate_grad_batches gradient_accumulation_steps", "micro_batches"),
    ("grad_clip clip_grad clip_norm max_norm max_grad_norm gradient_clip_val", "optim.clip"),
    ("wd weight_decay", "optim.weight_decay"),
    ("wd weight_decay", "optim.lr", "optim.lr and the like: this task has no weight decay"),
    ("momentum", "optim.beta1"),
    ("optimizer optimiser", "optim.lr", "optim.lr and the like: each task has one optimiser"),
    ("warmup_steps warmup_iters num_warmup_steps", "schedule.warmup"),
    ("seeds n_seeds num_seeds random_seeds repeats", "seed", "-m seed=0,1,2"),
    ("random_seed rng_seed manual_seed random_state", "seed"),
    ("norms", "norm", "-m norm=ln,rms"),
    ("normalization normalisation normalizer norm_type norm_layer normalization_type", "norm"),
    ("eps epsilon norm_epsilon layer_norm_eps rms_norm_eps", "norm.eps"),
    ("impl implementation fused", "norm.impl"),
    ("model arch architecture network model_name experiment", "task", "task=NAME, which brings its model and data"),
    ("data dataset dataset_name", "data.name", "data.name (other data for the task) or task"),
    ("data_dir datadir data_path data_root data_folder dataset_dir", "data.root"),
    ("output output_dir out out_dir outdir save_dir log_dir logdir run_dir work_dir exp_dir", "results"),
    (
        "resume checkpoint ckpt restart overwrite",
        "force",
        "the same command again: it continues; force=true begins anew",
    ),
    ("eval_interval eval_steps eval_freq val_every val_interval val_freq val_check_interval", "eval_every"),
    ("log_interval log_freq log_steps logging_steps print_every print_freq", "log_every"),
    ("save_every save_interval save_steps save_freq ckpt_every", "checkpoint_every"),
    ("wandb use_wandb log_wandb report_to", "logger", "logger=wandb"),
    ("tensorboard tb use_tensorboard", "logger", "logger=tensorboard"),
    (
        "gpu gpus n_gpus num_gpus ngpu ngpus",
        "device",
        "device=cuda; for several GPUs torchrun --nproc-per-node=N -m rmsexp",
    ),
    ("cuda use_cuda use_gpu accelerator devices", "device", "device=cuda"),
    ("amp use_amp fp16 bf16 half mixed_precision dtype", "precision"),
    ("num_threads n_threads cpus n_cpus cores num_workers n_workers workers", "threads"),
    ("jobs n_jobs parallel", "threads", "-m hydra/launcher=joblib hydra.launcher.n_jobs=N, for runs at the same time"),
    ("size preset debug", "scale"),
)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?", where X is the known word most like ``word`` (optim.lr for lr), or ""."""
    known = list(known)
    close = [name for name in known if name.endswith(f".{word}")] or difflib.get_close_matches(
        word, known, n=1, cutoff=0.5
    )
    return f"; did you mean {close[0]}?" if close else ""


def right_key(key: str, known: Iterable[str]) -> str:
    """Return "; write X" for a key that other programs have (``ELSEWHERE``), or as :func:`nearest`."""
    known, name = list(known), key.rpartition(".")[2].lower().replace("-", "_")
    found = (entry[1:] for entry in ELSEWHERE if name in entry[0].split() and entry[1] in known)
    written = next((entry[-1] for entry in found), None)
    return nearest(key, known) if written is None else f"; write {written}"


def choice(key: str, value: str, options: Sequence[str]) -> None:
    if value not in options:
        raise ValueError(f"{key}={value} is not known{nearest(str(value), options)} (one of {', '.join(options)})")


def positive(key: str, value: float, most: float = LARGEST_FLOAT) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{key} must be a finite number greater than 0, got {value}")
    if value > most:
        raise ValueError(f"{key} must be at most {most}, got {value}")


def at_least(key: str, value: float, least: float, most: int = MOST) -> None:
    """Check that a number is at least ``least``, an integer at most ``most``, and a float in the range of float32."""
    if not least <= value < math.inf:
        kind = "" if isinstance(value, int) else "a finite number of "
        raise ValueError(f"{key} must be {kind}at least {least}, got {value}")
    largest = most if isinstance(value, int) else LARGEST_FLOAT
    if value > largest:
        raise ValueError(f"{key} must be at most {largest}, got {value}")


def finite(key: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{key} must be a finite number, got {value}")


def fraction(key: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{key} must lie in (0, 1], got {value}")


def probability(key: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{key} must lie in [0, 1), got {value}")


def not_empty(key: str, value: str) -> None:
    if not value.strip():
        raise ValueError(f"{key} must not be empty")
