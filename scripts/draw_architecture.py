"""Draw the import contracts of pyproject.toml as a Mermaid diagram in docs/architecture.md.

The diagram replaces the text between the two marker lines of the document. A test fails if the document is out of date.

    python scripts/draw_architecture.py
"""

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "architecture.md"
START = "<!-- drawn by scripts/draw_architecture.py from the import contracts in pyproject.toml -->"
END = "<!-- end of the drawing -->"

Contract = Mapping[str, Any]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    DOCUMENT.write_text(updated(DOCUMENT.read_text(), contracts(ROOT / "pyproject.toml")))


def contracts(path: Path) -> list[Contract]:
    """Return the import contracts of a pyproject.toml."""
    rules: list[Contract] = tomllib.loads(path.read_text())["tool"]["importlinter"]["contracts"]
    return rules


def updated(document: str, rules: Sequence[Contract]) -> str:
    """Return the document with the text between its markers replaced by a drawing of the rules.

    Raises: ValueError if the document does not have the two markers once each.
    """
    if document.count(START) != 1 or document.count(END) != 1:
        raise ValueError(f"the document needs the lines {START!r} and {END!r} once each")
    before, rest = document.split(START)
    after = rest.split(END)[1]
    return f"{before}{START}\n\n{drawing(rules)}\n{END}{after}"


def drawing(rules: Sequence[Contract]) -> str:
    """Return a diagram for each contract of type "layers", and a sentence for each other contract."""
    lines: list[str] = []
    for rule in rules:
        if rule["type"] == "layers":
            for container in rule.get("containers", [""]):
                lines += [_heading(rule["name"], container), "", *_diagram(rule["layers"]), ""]
    others = [rule for rule in rules if rule["type"] != "layers"]
    lines += [f"- **{_capitalised(rule['name'])}.** {_sentence(rule)}" for rule in others]
    return "\n".join(lines) + "\n"


def _heading(name: str, container: str) -> str:
    inside = f" (inside `{container}`)" if container else ""
    return f"**{_capitalised(name)}**{inside}: a module may import modules of the layers below its own."


def _diagram(layers: Sequence[str]) -> Iterator[str]:
    """Yield a Mermaid flowchart with a box per layer, from the highest to the lowest."""
    yield "```mermaid"
    yield "flowchart TB"
    for number, layer in enumerate(layers):
        yield f'  subgraph layer{number}[" "]'
        yield "    direction LR"
        yield from (f'    {module.replace(".", "_")}["{_short(module)}"]' for module in _modules(layer))
        yield "  end"
    yield from (f"  layer{number} --> layer{number + 1}" for number in range(len(layers) - 1))
    yield "```"


def _modules(layer: str) -> list[str]:
    """Return the modules of a layer. The text separates them by "|" or ":"; optional ones are in parentheses."""
    return [module.strip(" ()") for module in re.split(r"[|:]", layer)]


def _short(module: str) -> str:
    return module.removeprefix("rmsexp.")


def _sentence(rule: Contract) -> str:
    """Return a sentence that says what a contract of type "independence" or "forbidden" forbids.

    Raises: ValueError for another type of contract.
    """
    if rule["type"] == "independence":
        return f"{_listed(rule['modules'])} must not import each other."
    if rule["type"] != "forbidden":
        raise ValueError(f"cannot draw a contract of type {rule['type']}")
    directly = " directly" if rule.get("allow_indirect_imports") else ", not even through another module"
    return f"{_listed(rule['source_modules'])} must not import {_listed(rule['forbidden_modules'])}{directly}."


def _listed(modules: Sequence[str]) -> str:
    return ", ".join(f"`{_short(module)}`" for module in modules)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    main()
