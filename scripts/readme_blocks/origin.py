"""Which committed records do not say exactly which code made them."""

from __future__ import annotations

from collections import Counter

import committed_records

from readme_blocks.evidence import Evidence
from readme_blocks.text import paragraphs, table


def unclean(evidence: Evidence) -> str:
    """The listed records, by folder. The list is read, not the history, which a clone may lack."""
    listed = committed_records.read_list(evidence.reference)
    changes = sum(committed_records.CHANGES in problems for problems in listed.values())
    lost = sum(committed_records.LOST in problems for problems in listed.values())
    counts = Counter(("/".join(record.split("/")[:2]), problems) for record, problems in listed.items())
    rows = [
        {"records below": f"`{folder}`", "number": str(count), "what is wrong": problems}
        for (folder, problems), count in sorted(counts.items())
    ]
    link = evidence.link("the list", evidence.reference / committed_records.LISTED)
    summary = (
        f"Old records that do not say exactly which code made them: {len(listed)} ({link}). Of these, made with "
        f"uncommitted changes: {changes}; of a commit that is not in the history: {lost}."
    )
    return paragraphs(summary, table(rows))
