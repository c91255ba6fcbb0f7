"""The files around the package agree with it: version, licence, and the command that CI calls."""

import re
import tomllib
from pathlib import Path

import yaml

import rmsexp

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_version_licence_and_paper_are_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (rmsexp.__version__, PROJECT["license"])
    released = f"{rmsexp.__version__} - {citation['date-released']}"
    assert re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE) == ["Unreleased", released]
    (paper,) = citation["references"]
    assert paper["title"] == "Root Mean Square Layer Normalization"
    assert [author["family-names"] for author in paper["authors"]] == ["Zhang", "Sennrich"]


def test_the_workflow_calls_make_test_and_keeps_the_site() -> None:
    text = (ROOT / ".github/workflows/test.yml").read_text()
    (job,) = yaml.safe_load(text)["jobs"].values()
    assert job["steps"][-2] == {"run": "make test"}
    assert job["steps"][-1]["with"]["path"] == "site"
    assert "was never run" in text  # says so until it was
