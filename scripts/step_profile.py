"""Where a training step goes: its parts by the clock, and its operators by PyTorch's profiler, as a table.

The parts are measured without the profiler, medians over the steps after the first few; operators are shares of the
processor's own time in a second pass, summed over kinds of work.

    python scripts/step_profile.py task=rnnsearch norm=rms scale=small data.root=~/data > profile.md
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from rmsexp import config, tasks
from rmsexp.train import provenance
from rmsexp.train.device import set_up_device
from rmsexp.train.randomness import StreamNoise

WARMUP = 3
KINDS = {  # the first of which an operator's name begins with one; those of PyTorch's "aten" library
    "matrix products": "mm addmm bmm mkldnn convolution _convolution",
    "attention in one kernel": "_scaled_dot_product",
    "softmax and loss": "_softmax softmax logsumexp exp amax gather scatter",
    "embedding": "embedding index",
    "optimiser": "_fused_adam _foreach",
    "noise": "uniform_ normal_ ge",
    "sums (statistics, gradients of biases and gains)": "sum mean",
    "memory: copies, joins, zeros": "copy_ cat stack fill_ clone zero",
    "activations and their gradients": "tanh sigmoid threshold relu clamp",
    "other elementwise": "add mul sub div pow rsqrt where lerp masked_fill",
}
REST = "the rest (Python, autograd, views)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    job = config.job([*map(config.expand_home, arguments.overrides), "device=cpu"])
    device = set_up_device(job.config)
    task = tasks.make(job, device)
    task.prepare(lambda text: print(text, file=sys.stderr))
    model = task.build(job.norm)
    task.initialise(model)
    optimizer = task.optimizer(model)

    parts: dict[str, list[float]] = defaultdict(list)
    for step in range(WARMUP + arguments.steps):
        train(task, model, optimizer, step, parts)
    medians = {name: 1000 * statistics.median(seconds[WARMUP:]) for name, seconds in parts.items()}
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for step in range(arguments.steps):
            train(task, model, optimizer, step, parts)
    report(job, device, medians, by_kind(profiler.key_averages()))


def train(task: Any, model: nn.Module, optimizer: Any, step: int, parts: dict[str, list[float]]) -> None:
    """One step as the trainer does it, the time of each of its parts appended."""
    cfg, began = task.config, time.perf_counter()

    def passed(name: str) -> None:
        nonlocal began
        now = time.perf_counter()
        parts[name].append(now - began)
        began = now

    batches = task.batches(step)
    passed("data")
    losses = [
        task.objective(model, batch, StreamNoise(cfg.seed, "noise", step, micro)).loss / len(batches)
        for micro, batch in enumerate(batches)
    ]
    passed("forward and loss")
    for loss in losses:
        loss.backward()
    passed("backward")
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    if cfg.optim.clip is not None:
        nn.utils.clip_grads_with_norm_(model.parameters(), cfg.optim.clip, norm)
    passed("norm of the gradient, clipping")
    optimizer.step()
    optimizer.zero_grad()
    passed("update")


def by_kind(averages: Any) -> dict[str, float]:
    """The share of each kind of work in the time of the operators themselves."""
    kinds: dict[str, float] = defaultdict(float)
    for event in averages:
        name = event.key.removeprefix("aten::")
        kind = next((kind for kind, names in KINDS.items() if name.startswith(tuple(names.split()))), REST)
        kinds[kind] += event.self_cpu_time_total
    total = sum(kinds.values())
    return {kind: spent / total for kind, spent in sorted(kinds.items(), key=lambda item: -item[1])}


def report(job: config.Job, device: torch.device, medians: dict[str, float], kinds: dict[str, float]) -> None:
    whole = sum(medians.values())
    print(f"# A training step: task={job.config.task} norm={job.series} scale={job.setting}\n")
    machine = provenance.session(device, 0)["device"]
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print(f"| part | ms (of {whole:.0f}) | share |\n| --- | --- | --- |")
    for name, ms in medians.items():
        print(f"| {name} | {ms:.1f} | {100 * ms / whole:.1f} % |")
    print("\n| operators | share of the processor's time |\n| --- | --- |")
    for kind, share in kinds.items():
        print(f"| {kind} | {100 * share:.1f} % |")


if __name__ == "__main__":
    main()
