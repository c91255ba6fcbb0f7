"""``python -m rmsexp.analysis NAME``: the paper's analyses, each with tables (CSV).

invariance     Table 1: which changes of weights or data leave the output of which norm unchanged
hidden_stats   Table 5: mean and sd of the decoder's hidden-to-hidden map by target position, from task=rnnsearch runs
bleu           BLEU and chrF of translation runs on the same test set, compared by sacreBLEU's paired bootstrap
layers         what each norm saw over depth and steps (RMS, mean, gradient, gain), from runs with monitor=true
"""

import textwrap
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import rich
from rich import box
from rich import table as rich_table
from rich.markup import escape as markup_escape

from rmsexp.config import classes
from rmsexp.report.tables import markup
from rmsexp.system import atomic
from rmsexp.system.command_line import Parser, add_own_classes, entry_point

HEADING_WIDTH = 9  # characters to which column headings are wrapped


@entry_point
def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m rmsexp.analysis", description=__doc__)
    commands = parser.add_subparsers(dest="analysis", required=True, metavar="NAME")
    for name in ("invariance", "layers", "bleu", "hidden_stats"):
        options, out = commands.add_parser(name), Path("results/analysis", name)
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
    runs = [] if arguments.analysis == "invariance" else [arguments.runs]
    figures = [out] * (arguments.analysis == "layers")  # which draws them in this folder
    for table in analyse(*runs, *figures):
        _publish(table, out / f"{table.name}.csv")
    return 0


def _publish(table: markup.Table, path: Path) -> None:
    """Write a table to ``path`` as CSV, and print it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_atomic(path, markup.csv(table.numbers))
    print(table.title)
    printable = rich_table.Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in table.readable:  # headings are wrapped, also at hyphens, to make tables narrow
        printable.add_column(textwrap.fill(str(column), HEADING_WIDTH, break_long_words=False))
    for row in table.readable.to_numpy().tolist():
        printable.add_row(*map(markup_escape, row))  # a path may look like rich's markup
    rich.print(printable)
    print(f"written {path}")
