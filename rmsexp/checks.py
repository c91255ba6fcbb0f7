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
# What to write here for keys of other programs: (a key of ours, what to write, the names elsewhere, without dots).
STEPS = "max_steps=N (the run ends there) or schedule.steps=N (the whole schedule); a step is a batch"
ELSEWHERE = (
    (
        "max_steps",
        STEPS,
        "epochs epoch max_epochs num_epochs n_epochs nepochs num_train_epochs steps n_steps num_steps",
    ),
    ("max_steps", STEPS, "nsteps total_steps train_steps iters iter iterations max_iters n_iters num_iterations"),
    ("optim.lr", "optim.lr", "learning_rate base_lr init_lr max_lr"),
    ("batch_size", "batch_size", "bs batch train_batch_size"),
    ("micro_batches", "micro_batches", "grad_accum accumulation accumulate_grad_batches gradient_accumulation_steps"),
    ("optim.clip", "optim.clip", "grad_clip clip_grad clip_norm max_norm max_grad_norm gradient_clip_val"),
    ("optim.weight_decay", "optim.weight_decay", "wd weight_decay"),
    ("optim.lr", "optim.lr and the like: this task has no weight decay", "wd weight_decay"),
    ("optim.beta1", "optim.beta1", "momentum"),
    ("optim.lr", "optim.lr and the like: each task has one optimiser", "optimizer optimiser"),
    ("schedule.warmup", "schedule.warmup", "warmup_steps warmup_iters num_warmup_steps"),
    ("seed", "-m seed=0,1,2", "seeds n_seeds num_seeds random_seeds repeats"),
    ("seed", "seed", "random_seed rng_seed manual_seed random_state"),
    ("norm", "-m norm=ln,rms", "norms"),
    ("norm", "norm", "normalization normalisation normalizer norm_type norm_layer normalization_type"),
    ("norm.eps", "norm.eps", "eps epsilon norm_epsilon layer_norm_eps rms_norm_eps"),
    ("norm.impl", "norm.impl", "impl implementation fused"),
    ("task", "task=NAME, which brings its model and data", "model arch architecture network model_name experiment"),
    ("data.name", "data.name (other data for the task) or task", "data dataset dataset_name"),
    ("data.root", "data.root", "data_dir datadir data_path data_root data_folder dataset_dir"),
    ("results", "results", "output output_dir out out_dir outdir save_dir log_dir logdir run_dir work_dir exp_dir"),
    (
        "force",
        "the same command again: it continues; force=true begins anew",
        "resume checkpoint ckpt restart overwrite",
    ),
    (
        "eval_every",
        "eval_every",
        "eval_interval eval_steps eval_freq val_every val_interval val_freq val_check_interval",
    ),
    ("log_every", "log_every", "log_interval log_freq log_steps logging_steps print_every print_freq"),
    ("checkpoint_every", "checkpoint_every", "save_every save_interval save_steps save_freq ckpt_every"),
    ("logger", "logger=wandb", "wandb use_wandb log_wandb report_to"),
    ("logger", "logger=tensorboard", "tensorboard tb use_tensorboard"),
    (
        "device",
        "device=cuda; for several GPUs torchrun --nproc-per-node=N -m rmsexp",
        "gpu gpus n_gpus num_gpus ngpu ngpus",
    ),
    ("device", "device=cuda", "cuda use_cuda use_gpu accelerator devices"),
    ("precision", "precision", "amp use_amp fp16 bf16 half mixed_precision dtype"),
    ("threads", "threads", "num_threads n_threads cpus n_cpus cores num_workers n_workers workers"),
    ("threads", "-m hydra/launcher=joblib hydra.launcher.n_jobs=N, for runs at the same time", "jobs n_jobs parallel"),
    ("scale", "scale", "size preset debug"),
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
    ours = (written for of_ours, written, names in ELSEWHERE if name in names.split() and of_ours in known)
    written = next(ours, None)
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
