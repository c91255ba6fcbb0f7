"""The page on clusters: its Kubernetes Job fits the image of the Dockerfile, and Kubernetes' rules for its keys."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from helpers import documents

from rmsexp.campaign import question


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    (block,) = documents.blocks(documents.ROOT / "docs/clusters.md", "yaml")
    job = yaml.safe_load(block)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    found: dict[str, Any] = job["spec"]
    return found


def test_the_worker_uses_the_interpreter_of_the_image(spec: dict[str, Any]) -> None:
    """``make setup`` installs the package for this one only."""
    dockerfile, makefile = ((documents.ROOT / name).read_text() for name in ("Dockerfile", "Makefile"))
    folder = re.search(r"^WORKDIR (\S+)$", dockerfile, re.MULTILINE)
    binaries = re.search(r"^BIN := (\S+)$", makefile, re.MULTILINE)
    assert folder is not None
    assert binaries is not None
    assert "RUN make setup" in dockerfile.splitlines()
    (container,) = spec["template"]["spec"]["containers"]
    interpreter, *words = container["command"]
    assert interpreter == f"{folder[1]}/{binaries[1]}/python"
    assert words[:2] == ["-m", "rmsexp.campaign"]
    assert question.read(words[2], words[3:]).folder.name == "quality_cifar10"


def test_the_folders_of_the_command_are_on_a_volume_of_the_job(spec: dict[str, Any]) -> None:
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    assert mount["name"] in [volume["name"] for volume in pod["volumes"]]
    folders = [word.partition("=")[2] for word in container["command"] if "=" in word]
    assert len(folders) == 2
    assert all(folder.startswith(f"{mount['mountPath']}/") for folder in folders)
