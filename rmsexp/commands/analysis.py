"""``python -m rmsexp.analysis NAME``: the paper's analyses, each with tables (CSV).

invariance     Table 1: which changes of weights or data leave the output of which norm unchanged
hidden_stats   Table 5: mean and sd of the decoder's hidden-to-hidden map by target position, from task=rnnsearch runs
bleu           BLEU and chrF of translation runs on the same test set, compared by sacreBLEU's paired bootstrap
layers         what each norm saw over depth and steps (RMS, mean, gradient, gain), from runs with monitor=true

If a result contradicts the paper, a message names it and the exit status is 1.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rmsexp.config import classes
from rmsexp.system.command_line import Parser, add_own_classes, entry_point

OUT = Path("results/analysis")


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m rmsexp.analysis", description=__doc__)
    commands = parser.add_subparsers(dest="analysis", required=True, metavar="NAME")
    for name in ("invariance", "layers", "bleu", "hidden_stats"):
        options, out = commands.add_parser(name), OUT / name
        if name != "hidden_stats":  # whose tables lie in the folders of the runs
            options.add_argument("--out", type=Path, default=out, help=f"folder for tables; default: {out}")
        if name != "invariance":
            options.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
        if name == "hidden_stats":
            add_own_classes(options)
    arguments = parser.parse_args(argv)
    # the module of the analysis alone is imported, because the help needs no torch
    analyse = import_module(f"rmsexp.analysis.{arguments.analysis}").analyse
    out = getattr(arguments, "out", Path())
    if arguments.analysis == "hidden_stats":
        classes.load_own(arguments.config_dir, arguments.norm_class)
    if arguments.analysis == "invariance":
        finding = analyse()
    elif arguments.analysis == "layers":
        finding = analyse(arguments.runs, out)
    else:
        finding = analyse(arguments.runs)
    finding.publish(out)
    for line in finding.contradictions:
        print(f"rmsexp: contradicts the paper: {line}", file=sys.stderr)
    return 1 if finding.contradictions else 0
