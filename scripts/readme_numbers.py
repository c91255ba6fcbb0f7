"""Write the marked blocks of both README.md and of docs from the report and records in results/reference.

A block stands between two lines of its own, and nobody edits it by hand:

    <!-- numbers: NAME -->
    <!-- end -->

Its text comes from the function with this name in ``BLOCKS`` of ``readme_blocks``, ``readme_checks`` or
``readme_claims``. The script lists the blocks that differ, and numbers with decimals, percentages and counts ("9 of
10") outside of blocks, code and links, unless ``CONSTANTS`` has them: definitions, limits, quotes of the paper. With
--check it writes nothing, and exits with status 1 if it lists anything. Without, it also draws the picture of the
README, loss against steps beside loss against time, and writes ``configs/spread.yaml``.

    python scripts/readme_numbers.py
    python scripts/readme_numbers.py --check
"""

import argparse
import re
from pathlib import Path

import readme_blocks
import readme_checks
import readme_claims
from readme_blocks import ROOT, spreads

from rmsexp.records.frames import names, quantities
from rmsexp.records.frames.load import load
from rmsexp.report.plots import canvas, setting_curves, style
from rmsexp.report.plots.chart import Chart
from rmsexp.system import atomic

BLOCKS = readme_blocks.BLOCKS | readme_checks.BLOCKS | readme_claims.BLOCKS
PAGES = (ROOT / "README.md", ROOT / "results/README.md", *sorted((ROOT / "docs").glob("*.md")))
SPREAD = ROOT / "configs/spread.yaml"
PICTURE = ROOT / "docs/loss_against_time"
BLOCK = re.compile(r"^<!-- numbers: (\S+) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(
    r"(?<![\w.])(?:\d[\d,]*\.\d+(?!\.?\d)(?:e-?\d+)?(?: %)?|\d[\d,]*(?:e-?\d+| %)|\d+ of (?:the )?\d+)(?!\w)"
)
# what is no prose: blocks, fenced code, code, targets of links, and HTML
OTHER = re.compile(
    r"<!-- numbers: .*?<!-- end -->|^```.*?^```|`[^`\n]+`|\]\([^()\s]+\)|<[^>\n]+>", re.DOTALL | re.MULTILINE
)
# Numbers that nothing measured: levels, limits, targets, sizes, versions, and quotes of the paper
CONSTANTS = {
    "": {"95 %", "90 %"},
    "README.md": {"64 %", "3.11"},
    "results/README.md": {"0.09", "3.1"},
    "docs/campaign-reference.md": {"0.05", "0.031", "0.9"},
    "docs/campaigns.md": {"1 %", "99 %"},
    "docs/data.md": {"0.01", "0.3"},
    "docs/extending.md": {"0.0625", "0.125", "0.5", "1e-5"},
    "docs/own-model.md": {"3e-4"},
    "docs/paper.md": {"6.25 %", "0.2", "4.2", "0.01", "0.4"},
    "docs/performance.md": {"1e-10", "2e-5", "2.15", "3 %", "2.3"},
    "docs/reliability.md": {"88 %", "6.5 %"},
    "docs/timing.md": {"0.1", "10 %", "1.5 %", "2 %", "1.15", "1.2"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="list what differs, and write nothing")
    arguments = parser.parse_args()
    found = [line for page in PAGES for line in problems(page)]
    if not SPREAD.exists() or SPREAD.read_text() != spread():
        found.append(f"{SPREAD.relative_to(ROOT)} is not as the records say")
    if not arguments.check:
        for page in PAGES:
            atomic.write_atomic(page, updated(page.read_text()))
        atomic.write_atomic(SPREAD, spread())
        draw_picture()
    print("\n".join(found) or "all blocks are as the records say")
    return int(bool(found) and arguments.check)


def spread() -> str:
    """Return the content of the file from which plans of campaigns take the spread over seeds."""
    lines = (f"{name}: {sd:.3g} # {row['unit']}" for name, (sd, row) in spreads().items())
    head = "# standard deviation over seeds of RMSNorm - LayerNorm in results/reference, by scripts/readme_numbers.py"
    return "\n".join((head, *lines, ""))


def draw_picture() -> None:
    """Draw the training of RNNSearch with three norms, by runs that had the machine for themselves."""
    records = load(ROOT / "results/reference/amd-epyc-2-cores/rnnsearch/medium")
    looks = style.looks(names.in_order(records.runs["series"]))
    panels = setting_curves.panels(records, quantities.usual(names.SAMPLE, "loss"), looks)
    caption = ["RNNSearch, English to German (Multi30k), eager norms, one thread of an AMD EPYC; three seeds"]
    caption += [setting_curves.reading(panels)]
    legend = [(look, names.label(series)) for series, look in looks.items()]
    title = "Loss against steps, and the same loss against time"
    canvas.write(canvas.draw(Chart(title, caption, panels, legend, columns=2)), PICTURE, ["png"])


def updated(document: str) -> str:
    """Return the page with the text of each block as the records say. Raises: KeyError for an unknown block."""
    return BLOCK.sub(lambda match: f"<!-- numbers: {match[1]} -->\n{BLOCKS[match[1]]()}\n<!-- end -->", document)


def problems(page: Path) -> list[str]:
    """Return a line for each block of a page that differs, and for each number that has no source."""
    document, name = page.read_text(), page.relative_to(ROOT).as_posix()
    lines = [
        f"{name}: block {match[1]} is not as the records say"
        for match in BLOCK.finditer(document)
        if match[2].strip() != BLOCKS[match[1]]().strip()
    ]
    if document.count("<!-- numbers: ") != len(BLOCK.findall(document)):
        lines.append(f"{name}: a block has no end")
    stated = CONSTANTS[""] | CONSTANTS.get(name, set())
    prose = OTHER.sub(lambda match: "\n" * match[0].count("\n"), document)
    return lines + [
        f"{name}:{line}: {number} is neither in a block nor among CONSTANTS; measured numbers need a block"
        for line, text in enumerate(prose.splitlines(), 1)
        for number in NUMBER.findall(text)
        if number not in stated
    ]


if __name__ == "__main__":
    raise SystemExit(main())
