"""The page of the paper lists every difference from the original code that a docstring states, with its file."""

import re

from helpers import documents

PAGE = documents.ROOT / "docs/paper.md"


def test_the_page_lists_the_differences_that_docstrings_state() -> None:
    stated = {
        (point, path.relative_to(documents.ROOT).as_posix())
        for path in (documents.ROOT / "rmsexp").rglob("*.py")
        for point in re.findall(r"^ *Deviation: (.+)$", path.read_text(), re.MULTILINE)
    }
    rows = re.findall(r"^\| \[(.+?)\]\(\.\./(rmsexp/\S+)\)(, .+?) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    listed = [(part + rest, file) for part, file, rest in rows]
    assert set(listed) == stated
    assert len(listed) > 5
