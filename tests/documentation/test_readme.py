"""The README is short, Python examples compile, and the architecture page agrees with import contracts and package."""

from __future__ import annotations

import re
import runpy

import pytest
from helpers import documents

README = documents.ROOT / "README.md"
ARCHITECTURE = documents.ROOT / "docs/architecture.md"
SCRIPT = runpy.run_path(str(documents.ROOT / "scripts/draw_architecture.py"))


def test_the_readme_is_short() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 160
    assert len([word for word in text.split() if word not in ("|", "---")]) <= 1200


@pytest.mark.parametrize("document", documents.DOCUMENTS, ids=documents.name)
def test_python_examples_compile(document) -> None:
    for block in documents.blocks(document, "python"):
        compile(block, str(document), "exec")


def test_the_drawing_shows_the_import_contracts() -> None:
    contracts = SCRIPT["contracts"](documents.ROOT / "pyproject.toml")
    assert ARCHITECTURE.read_text() == SCRIPT["updated"](ARCHITECTURE.read_text(), contracts), (
        "docs/architecture.md is out of date; run python scripts/draw_architecture.py"
    )


def test_the_drawing_has_every_layer_and_rule() -> None:
    rules = [
        {"name": "down", "type": "layers", "layers": ["p.a | p.b", "(p.c)"]},
        {"name": "rooms", "type": "layers", "layers": ["x"], "containers": ["p.a"]},
        {"name": "light", "type": "forbidden", "source_modules": ["p.a"], "forbidden_modules": ["torch", "p.c"]},
        {"name": "apart", "type": "independence", "modules": ["p.a", "p.b"]},
    ]
    drawing = SCRIPT["drawing"](rules)
    assert all(f'["p.{module}"]' in drawing for module in "abc")
    assert drawing.count("layer0 --> layer1") == 1
    assert "inside `p.a`" in drawing
    assert "**Light.** `p.a` must not import `torch`, `p.c`, not even through another module." in drawing
    assert "**Apart.** `p.a`, `p.b` must not import each other." in drawing
    with pytest.raises(ValueError, match="cannot draw a contract of type custom"):
        SCRIPT["drawing"]([{"name": "new", "type": "custom"}])
    with pytest.raises(ValueError, match="once each"):
        SCRIPT["updated"]("no markers", rules)


def test_the_table_of_rooms_has_every_module_of_the_package() -> None:
    rooms = ARCHITECTURE.read_text().split("## Modules")[1].split("\n## ")[0]
    listed = {module for line in re.findall(r"^\| (`.*?) \|", rooms, re.MULTILINE) for module in line.split("`")[1::2]}
    package = documents.ROOT / "rmsexp"
    modules = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    assert listed == modules - {"__init__"}
