"""The project's documents: their Markdown text, and the links, anchors and commands in it."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]
COMMAND = re.compile(r"(python -m rmsexp([. ]|$)|(rmsexp|make)( |$)|python scripts/)")
# What may stand before a command, or in its place: variables, a limit of time, torchrun, and the workers of Slurm.
STARTERS = (
    (re.compile(r"^(?:[A-Z_]+=\S+ |timeout \d+ )+"), ""),
    (re.compile(r"^torchrun .*?(?=-m rmsexp)"), "python "),
    (re.compile(r"^sbatch .*?scripts/slurm_workers\.sh"), "python -m rmsexp.campaign"),
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@lru_cache
def text(path: Path) -> str:
    """Return the Markdown text of a document, or of a notebook's Markdown cells."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def blocks(path: Path, language: str) -> list[str]:
    """Return the contents of a document's fenced blocks of this language."""
    return [content for label, content in FENCE.findall(text(path)) if label == language]


def prose(path: Path) -> str:
    """Return the Markdown text of a document without its fenced blocks."""
    return FENCE.sub("", text(path))


def links(path: Path) -> list[str]:
    """Return the targets of all links and images outside of code."""
    return LINK.findall(SPAN.sub("", prose(path)))


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings as GitHub makes them: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(path: Path) -> Iterator[str]:
    """Yield the project's commands (see ``COMMAND``) in fenced blocks and code spans, without their comments.

    The blocks are those labelled ``sh`` or ``bash``.
    """
    lines = [line for label in ("sh", "bash") for block in blocks(path, label) for line in block.splitlines()]
    for line in [*lines, *SPAN.findall(prose(path))]:
        command = re.sub(r"\s+# .*", "", line).strip()
        for pattern, replacement in STARTERS:
            command = pattern.sub(replacement, command)
        if COMMAND.match(command):
            yield command


def write_spirals(folder: Path) -> None:
    """Write the task of docs/extending.md: ``spirals.py`` and its configs in ``my``, to a folder."""
    page = ROOT / "docs/extending.md"
    (folder / "spirals.py").write_text(*(block for block in blocks(page, "python") if "def spirals" in block))
    for file, content in zip(("task/spirals.yaml", "recipe/spirals/demo.yaml"), blocks(page, "yaml")[1:], strict=True):
        (folder / "my" / file).parent.mkdir(parents=True)
        (folder / "my" / file).write_text(content)


def write_dyisru(folder: Path) -> None:
    """Write the norm of docs/extending.md, ``my_dyisru.py`` and ``my/norm/dyisru.yaml``, to a folder."""
    page = ROOT / "docs/extending.md"
    (folder / "my/norm").mkdir(parents=True)
    (folder / "my_dyisru.py").write_text(*(block for block in blocks(page, "python") if "class DyISRU" in block))
    (folder / "my/norm/dyisru.yaml").write_text(blocks(page, "yaml")[0])
