"""Links lead somewhere, examples compile, and pages agree with folders and docstrings. Web links are not checked."""

import re
import tomllib
from pathlib import Path

import pytest
from helpers import documents

ARCHITECTURE = documents.ROOT / "docs/architecture.md"


@pytest.mark.parametrize("document", documents.DOCUMENTS, ids=documents.name)
def test_python_examples_compile(document) -> None:
    for block in documents.blocks(document, "python"):
        compile(block, str(document), "exec")


def test_the_house_on_the_architecture_page_is_that_of_the_folders_and_contracts() -> None:
    layers = tomllib.loads((documents.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    contract = [{room.removeprefix("rmsexp.") for room in layer.split(" | ")} for layer in layers["layers"]]
    drawn: list[set[str]] = [set() for _ in contract]
    for room, layer in re.findall(r"^  (\w+)(?:/|\.py) .*  (\d)$", ARCHITECTURE.read_text(), re.MULTILINE):
        drawn[-int(layer)].add(room)
    assert drawn == contract
    package = documents.ROOT / "rmsexp"
    assert set.union(*contract) == {path.parent.name for path in package.glob("*/__init__.py")} | {"task"}


def test_modules_beside_the_rooms_are_doors() -> None:
    doors = set((documents.ROOT / "rmsexp").glob("*.py"))
    doors -= {path for path in doors if path.name in ("__init__.py", "__main__.py", "task.py")}
    assert max(len(path.read_text().splitlines()) for path in doors) <= 6


@pytest.mark.parametrize("document", documents.DOCUMENTS, ids=documents.name)
def test_links_lead_to_existing_files_and_headings(document: Path) -> None:
    for link in documents.links(document):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), link
        assert path.is_relative_to(documents.ROOT), link
        assert not anchor or anchor in documents.anchors(path), link


def test_the_readme_links_to_every_page_of_docs() -> None:
    pages = {f"docs/{path.name}" for path in (documents.ROOT / "docs").glob("*.md")}
    assert pages <= set(documents.links(documents.ROOT / "README.md"))


def test_the_page_lists_the_differences_that_docstrings_state() -> None:
    stated = {
        (point, path.relative_to(documents.ROOT).as_posix())
        for path in (documents.ROOT / "rmsexp").rglob("*.py")
        for point in re.findall(r"^ *Deviation: (.+)$", path.read_text(), re.MULTILINE)
    }
    rows = re.findall(
        r"^\| \[(.+?)\]\(\.\./(rmsexp/\S+)\)(, .+?) \| .+ \|$",
        (documents.ROOT / "docs/paper.md").read_text(),
        re.MULTILINE,
    )
    listed = [(part + rest, file) for part, file, rest in rows]
    assert set(listed) == stated
    assert len(listed) > 5
