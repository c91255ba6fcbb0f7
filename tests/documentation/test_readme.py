"""The README is short, Python examples compile, and the architecture page agrees with contracts and folders."""

import re
import tomllib

import pytest
from helpers import documents

README = documents.ROOT / "README.md"
ARCHITECTURE = documents.ROOT / "docs/architecture.md"


def test_the_readme_is_short() -> None:
    assert len([word for word in README.read_text().split() if word not in ("|", "---")]) <= 900


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
