"""The files around the package agree with it: version, licence, and the commands that CI and Docker call."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import rmsexp

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation["version"] == rmsexp.__version__
    assert headings == ["Unreleased"]


def test_the_citation_names_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (paper,) = citation["references"]
    assert paper["title"] == "Root Mean Square Layer Normalization"
    assert [author["family-names"] for author in paper["authors"]] == ["Zhang", "Sennrich"]
    assert citation["license"] == PROJECT["license"]


def test_the_workflow_calls_make_test() -> None:
    (job,) = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"].values()
    assert job["steps"][-1] == {"run": "make test"}


def test_the_docker_image_runs_the_demo() -> None:
    assert (ROOT / "Dockerfile").read_text().splitlines()[-1] == 'CMD ["make", "demo"]'


@pytest.mark.parametrize("name", ["Dockerfile", ".github/workflows/test.yml"])
def test_files_that_were_never_run_say_so(name: str) -> None:
    assert "was never " in (ROOT / name).read_text()
