"""Check that a run gives the same bits with any number of processes, also if it is killed and continued with another.

    python scripts/distributed_equality.py [--tasks cifar10,rnnsearch] [--norms rms,bn] [--steps 40] [--scale demo]

For each task and norm there are runs on 1, 2, 3 and 4 processes, and one that is killed at every tenth step: one of its
processes, in turn, gets SIGKILL or SIGTERM, and the run continues with another number of processes. Parameters,
buffers, optimiser and metrics are compared with those of one process. The number of micro-batches divides neither the
batch nor the number of processes; dropout and noise are on. With --scale tiny the models are smaller than those of
scale=demo. After a SIGKILL the other processes get no signal for a minute: they must end by themselves.
With --results the results are written to a record (check_record.py).
"""

import argparse
import itertools
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

import check_record
import disturb
from check_record import Check, add_option
from forked_run import Kill, run

CHECKPOINT_EVERY = 7
SEARCH = ["decoding.max_length=6", "decoding.beyond_source=2", "decoding.beam=2", "decoding.valid_beam=1"]
ATTENTION = ["model.attention_dropout=0.1", "model.relu_dropout=0.1", *SEARCH]
SHORT_SENTENCES = ["data.max_length=16", "data.overlong=drop"]
# 7 divides none of these batch sizes. In recurrences a batch norm needs at least 8 examples of a micro-batch, so that
# rnnsearch has another batch size than the demo. Seven micro-batches of 115 tokens are as large as the demo's one.
DEMO = {
    **{task: ["micro_batches=7"] for task in ("language_model", "order_embedding", "cifar10", "attentive_reader")},
    "transformer": ["tokens=115", "accumulate=7", *ATTENTION],
    "rnnsearch": ["batch_size=60", "micro_batches=7", "model.dropout=0.2", *SEARCH],
}
SMALL = ["batch_size=16", "micro_batches=5"]
BLOCK = ["model.width=16", "model.layers=1", "model.heads=2"]
TINY = {
    "language_model": [*BLOCK, "model.inner=32", "model.kv_heads=1", "context=16", "batch_size=8", "micro_batches=5"],
    "order_embedding": ["model.embedding=8", "model.hidden=8", *SMALL],
    "cifar10": ["model.width=0.05", "batch_size=12", "micro_batches=5"],  # two images or more in each part, for bn
    "transformer": [*BLOCK, "model.inner=16", "tokens=100", "accumulate=5", *ATTENTION, *SHORT_SENTENCES],
    "rnnsearch": ["model.embedding=8", "model.hidden=12", "model.dropout=0.2", *SMALL, *SEARCH, *SHORT_SENTENCES],
    "attentive_reader": ["model.width=8", *SMALL],
}
SCALES = {"demo": DEMO, "tiny": TINY}  # the keys that differ from scale=demo, by task
STOPPED = {128 + signal.SIGTERM, -signal.SIGTERM}  # the latter if it comes again, as from torchrun, after the run


def words_of(task: str, norm: str, steps: int, scale: str) -> list[str]:
    edges = [f"max_steps={steps}", "log_every=3", "eval_every=40", f"checkpoint_every={CHECKPOINT_EVERY}", "threads=1"]
    # the tiny micro-batches have at least three examples
    few = ["norm.min_examples=2"] if scale == "tiny" and norm in ("bn", "mean_only_bn") else []
    return [f"task={task}", f"norm={norm}", *few, *SCALES[scale][task], *edges]


def check(words: Sequence[str], steps: int, sizes: Sequence[int], root: Path) -> list[str]:
    """Do all runs of a task and a norm; return a line for each error or, without errors, each difference."""
    log, errors = root / "log.txt", list[str]()
    for size in sizes:
        if any(statuses := run([*words, f"results={root / str(size)}"], size, log)):
            errors.append(f"{size} processes ended with {statuses}")
    command, order = [*words, f"results={root / 'killed'}"], [*sizes[1:], sizes[0]]
    for number, step in enumerate(range(10, steps, 10)):
        size, signum = order[number % len(order)], (signal.SIGKILL, signal.SIGTERM)[number % 2]
        kill = Kill(number % size, step, signum)
        statuses = run(command, size, log, kill)
        is_stopped = signum == signal.SIGTERM and set(statuses) <= STOPPED
        # whoever did not end by itself got SIGTERM or SIGKILL from wait()
        others = [status for rank, status in enumerate(statuses) if rank != kill.rank]
        if not is_stopped and (statuses[kill.rank] != -signum or not all(status > 0 for status in others)):
            errors.append(f"{kill} of {size} processes: exit statuses {statuses}")
    if any(statuses := run(command, order[-1], log)):
        errors.append(f"the killed run ended with {statuses}")
    if errors:
        return errors
    expected, *found = (disturb.contents(root / name) for name in (*map(str, sizes), "killed"))
    return [line for content in found for line in disturb.differences(expected, content)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TINY), help="tasks, with commas (all)")
    parser.add_argument("--norms", default="rms,bn", help="norms, with commas (rms,bn)")
    parser.add_argument("--steps", type=int, default=40, help="steps of each run (40)")
    parser.add_argument("--sizes", default="1,2,3,4", help="numbers of processes, from 1 on (1,2,3,4)")
    parser.add_argument("--scale", choices=SCALES, default="demo", help="size of the models (demo)")
    parser.add_argument("--data-root", type=Path, help="folder of the data (data.root)")
    add_option(parser, None)
    options = parser.parse_args()
    record, sizes, found = Check("distributed_equality", options.results), [*map(int, options.sizes.split(","))], []
    data = [f"data.root={options.data_root}"] if options.data_root else []
    for task, norm in itertools.product(options.tasks.split(","), options.norms.split(",")):
        words, root = words_of(task, norm, options.steps, options.scale), Path(tempfile.mkdtemp(prefix="rmsexp-"))
        errors = check([*words, *data], options.steps, sizes, root)
        print(f"{task} {norm}: {'; '.join(errors) or 'equal'}; {root}", flush=True)
        found.append({"task": task, "norm": norm, "errors": errors})
    record.write({"steps": options.steps, "sizes": sizes, "scale": options.scale, "runs": found})
    return int(any(one["errors"] for one in found))


if __name__ == "__main__":
    check_record.run(main)
