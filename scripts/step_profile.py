"""Profile the training step of a task: print the time of its parts and the shares of kinds of operators, in Markdown.

The parts are timed without PyTorch's profiler; their times are medians over steps after a warm-up. The shares are
measured by the profiler when the steps are repeated: the CPU time of each operator, without the operators that it
calls, is summed by kind.

    python scripts/step_profile.py task=rnnsearch norm=rms scale=small data.root=~/data > profile.md

Both are also written to a record (check_record.py).
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import check_record
import torch
from torch.profiler import ProfilerActivity, profile

from rmsexp import config
from rmsexp.measure.steps import make_stepper
from rmsexp.system.command_line import inform
from rmsexp.train import provenance
from rmsexp.train.device import set_up_device
from rmsexp.train.step import WARMUP_STEPS, Stepper

# Kinds of operators, and prefixes of their names, without "aten::", the name of PyTorch's own library. An operator
# belongs to the first kind that has a prefix of its name. "_" is added to the name before it is compared, so that
# "exp_" is a prefix of "exp" and not of "expand".
KINDS = {
    "matrix products": "mm addmm bmm mkldnn convolution _convolution",
    "attention in one kernel": "_scaled_dot_product",
    "fused norms and recurrences": "rmsexp::",
    "softmax and loss": "_softmax softmax _log_softmax log_softmax nll_loss logsumexp exp_ amax gather scatter",
    "embedding": "embedding index",
    "optimiser": "_fused_adam _foreach",
    "noise": "uniform_ normal_ ge_",
    "sums (statistics, gradients of biases and gains)": "sum mean",
    "memory: copies, joins, zeros": "copy_ cat stack fill_ clone zero",
    "activations and their gradients": "tanh sigmoid threshold relu clamp silu gelu leaky_relu",
    "pooling": "max_pool avg_pool",
    "other elementwise": "add mul sub div pow rsqrt where lerp masked_fill",
}
# how the table names these parts
PARTS = {"forward": "forward and loss", "update": "norm of the gradient, clipping, update"}
OTHER = "the rest (Python, autograd, views)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps",
        type=check_record.at_least(1),
        default=20,
        help="number of steps that are timed, and then profiled (20)",
    )
    check_record.add_option(parser)
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    job = config.job(["device=cpu", *map(config.expand_home, arguments.overrides)])
    if job.config.device != "cpu":
        parser.error("the operators of a step are profiled on a CPU: leave device= out")
    device = set_up_device(job.config)
    check = check_record.Check("step_profile", arguments.results, device)
    stepper = make_stepper(job, device, inform)

    steps = range(WARMUP_STEPS, WARMUP_STEPS + arguments.steps)
    with check.measuring():
        for step in range(WARMUP_STEPS):
            part_seconds(stepper, step)
        samples = [part_seconds(stepper, step) for step in steps]
    medians = {part: 1000 * statistics.median(sample[part] for sample in samples) for part in samples[0]}
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for step in steps:
            stepper.take(step, stepper.task.batches(step))
    shares = kind_shares(profiler.key_averages())
    print_report(job, device, medians, shares)
    identity = {"task": job.config.task, "setting": job.setting, "series": job.series}
    check.write(identity | {"milliseconds": medians, "shares": shares})


def part_seconds(stepper: Stepper, step: int) -> dict[str, float]:
    """Take one training step and return the seconds of each part, by name, and of the rest of the step."""
    seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds[name] += time.perf_counter() - start

    with part("data"):
        batches = stepper.task.batches(step)
    with part("whole step"):
        stepper.take(step, batches, part)
    rest = seconds.pop("whole step") - sum(seconds[name] for name in ("forward", "backward", "update"))
    return {**seconds, "learning rate, sums of metrics": rest}


def kind_shares(averages: Any) -> dict[str, float]:
    """Return the share of each kind of operator in the CPU time of all operators, largest first."""
    microseconds: dict[str, float] = defaultdict(float)
    for event in averages:
        name = f"{event.key.removeprefix('aten::')}_"
        kind = next((kind for kind, names in KINDS.items() if name.startswith(tuple(names.split()))), OTHER)
        microseconds[kind] += event.self_cpu_time_total
    total = sum(microseconds.values())
    return {kind: time / total for kind, time in sorted(microseconds.items(), key=lambda item: -item[1])}


def print_report(job: config.Job, device: torch.device, medians: dict[str, float], shares: dict[str, float]) -> None:
    total = sum(medians.values())
    print(f"# A training step: task={job.config.task} norm={job.series} scale={job.setting}\n")
    machine = provenance.session(device, 0)["device"]
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print(f"| part | ms (of {total:.0f}) | share |\n| --- | --- | --- |")
    for name, milliseconds in medians.items():
        print(f"| {PARTS.get(name, name)} | {milliseconds:.1f} | {100 * milliseconds / total:.1f} % |")
    print("\n| operators | share of CPU time |\n| --- | --- |")
    for kind, share in shares.items():
        print(f"| {kind} | {100 * share:.1f} % |")


if __name__ == "__main__":
    check_record.run(main)
