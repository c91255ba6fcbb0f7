"""Links in the documents to files and headings of this project lead to existing ones; web links are not checked."""

from pathlib import Path

import pytest
from helpers import documents


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
