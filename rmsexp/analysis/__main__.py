"""``python -m rmsexp.analysis NAME``: the paper's analyses, each with tables (CSV) and a figure (PNG, SVG).

invariance     Table 1: which change of weights or data leaves which norm's output as it was
gradients      section 4.2: how gradients scale with weights and data, and how that adapts the learning rate
p_sweep        Figure 3: quality and time of pRMSNorm against p, from runs
init_center    Figure 4: validation BLEU with weights drawn around another centre, from runs of task=rnnsearch
hidden_stats   Table 5: the decoder's hidden-to-hidden mapping by target position, of trained runs of task=rnnsearch

The exit status is 1 where what is measured contradicts the paper, and it is said where.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rmsexp.analysis.finding import Finding
from rmsexp.config import ConfigError
from rmsexp.data import DataError

OUT = Path("results/analysis")


def main() -> int:
    arguments = _parser().parse_args()
    try:
        finding = _analyse(arguments)
        finding.publish(arguments.out or _folder(arguments))
    except (ConfigError, DataError, ValueError, OSError) as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    for line in finding.contradictions:
        print(f"rmsexp: otherwise than the paper says: {line}", file=sys.stderr)
    return 1 if finding.contradictions else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rmsexp.analysis", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="analysis", required=True, metavar="NAME")
    for name in ("invariance", "gradients"):
        commands.add_parser(name)
    for name in ("p_sweep", "init_center"):
        commands.add_parser(name).add_argument("results", type=Path, metavar="RESULTS", help="a folder with runs below")
    commands.add_parser("hidden_stats").add_argument("runs", nargs="+", type=Path, metavar="RUN", help="runs' folders")
    for name, command in commands.choices.items():
        own = "the folder of a single RUN, else " if name == "hidden_stats" else ""
        command.add_argument("--out", type=Path, help=f"where it is written ({own}{OUT / name})")
    return parser


def _analyse(arguments: argparse.Namespace) -> Finding:
    """Each import stands where it is needed: those that read records alone import no torch."""
    match arguments.analysis:
        case "invariance":
            from rmsexp.analysis import invariance

            return invariance.analyse()
        case "gradients":
            from rmsexp.analysis import gradients

            return gradients.analyse()
        case "p_sweep":
            from rmsexp.analysis import p_sweep

            return p_sweep.analyse(arguments.results)
        case "init_center":
            from rmsexp.analysis import init_center

            return init_center.analyse(arguments.results)
        case _:
            from rmsexp.analysis import hidden_stats

            return hidden_stats.analyse(arguments.runs)


def _folder(arguments: argparse.Namespace) -> Path:
    if arguments.analysis == "hidden_stats" and len(arguments.runs) == 1:
        return Path(arguments.runs[0])
    return OUT / str(arguments.analysis)


if __name__ == "__main__":
    sys.exit(main())
