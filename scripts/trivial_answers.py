"""Compute the error of trivial answers to the questions of the attentive reader, which no model should exceed.

    python scripts/trivial_answers.py scale=small data.root=~/data

For each split of questions that are held out: the error of naming the most frequent entity of the passage (of several,
the one that comes first), that of naming one of its entities at random, and that of always naming the same entity, for
each entity. They are also written to a record (check_record.py).
"""

import argparse

import check_record
import numpy as np

from rmsexp import config, tasks
from rmsexp.system.command_line import inform


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    check_record.add_option(parser)
    parser.add_argument("overrides", nargs="*", help="as on the command line of rmsexp")
    arguments = parser.parse_args()
    check = check_record.Check("trivial_answers", arguments.results)
    job = config.job(["task=attentive_reader", *map(config.expand_home, arguments.overrides)])
    task = tasks.make(job, check_record.CPU)
    task.prepare(inform)
    cloze, splits = task._cloze, {}
    for name, split in task._held_out().items():
        errors = [trivial(split.passages[i], answer, cloze.entities) for i, answer in enumerate(split.answers)]
        frequent, chance = np.mean(errors, axis=0)
        same = [float(np.mean(np.asarray(split.answers) != entity)) for entity in cloze.entities]
        splits[name] = {"questions": len(errors), "most_frequent": float(frequent), "random": float(chance)}
        splits[name]["always_the_same"] = same
        print(
            f"{name}: {len(errors)} questions; most frequent entity wrong {frequent:.2%}, a random one {chance:.2%}, "
            f"always the same {min(same):.2%} to {max(same):.2%}"
        )
    check.write({"dataset": task.dataset.name, "splits": splits})


def trivial(passage: np.ndarray, answer: int, entities: np.ndarray) -> tuple[float, float]:
    """Return the errors of the most frequent entity and of a random one, for one question.

    ``passage``: the ids of its words, int64 of shape (words,). ``entities``: the ids of words that are entities.
    """
    named, first, counts = np.unique(passage[np.isin(passage, entities)], return_index=True, return_counts=True)
    if not len(named):
        return 1.0, 1.0
    most = named[np.lexsort((first, -counts))[0]]
    return float(most != answer), 1 - float(answer in named) / len(named)


if __name__ == "__main__":
    check_record.run(main)
