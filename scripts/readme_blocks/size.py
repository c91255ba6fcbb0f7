"""What the preparation of parallel text and training on image features took, by size (scripts/data_at_size.py)."""

from __future__ import annotations

import os
from typing import Any

import data_at_size as measured

from readme_blocks.evidence import Evidence
from readme_blocks.text import listed, machine, not_recorded, paragraphs, sentences, table

COMMAND = "python scripts/data_at_size.py --pairs 10000 100000 1000000 4500000 --images 113287"


def data_at_size(evidence: Evidence) -> str:
    """A table of texts and one of image features, with the exponents of the growth, and the figure if there is one."""
    found = evidence.all_checks(measured.NAME)
    if not found:
        return not_recorded(COMMAND)
    records = [content["results"] | {"machine": machine(content)} for content in found.values()]
    texts = sorted((one for one in records if "pairs" in one), key=lambda one: (one["subwords"], one["pairs"]))
    images = sorted((one for one in records if "images" in one), key=lambda one: one["images"])
    return paragraphs(
        table([_text(one) for one in texts]) if texts else "",
        sentences(*(_growth(kind, texts) for kind in measured.KINDS)),
        table([_images(one) for one in images]) if images else "",
        f"Each size was measured once: on {listed(dict.fromkeys(one['machine'] for one in records))}. Other work there "
        "was not recorded.",
        *(_figure(path, evidence) for path in evidence.reference.glob(f"*/checks/{measured.NAME}.png")),
    )


def _text(record: dict[str, Any]) -> dict[str, str]:
    prepared, cached = record["prepared"], record["cached"]
    return {
        "subwords": f"`{record['subwords']}`",
        "pairs": f"{record['pairs']:,}",
        "learnt subwords": f"{record['vocabulary']:,}",
        "preparing, s": f"{prepared['seconds']:,.0f}",
        "CPU time, s": f"{prepared['processor']:,.0f}",
        "MiB": f"{prepared['mebibytes']:,.0f}",
        "loading what is stored, s": f"{cached['seconds']:.1f}",
        "MiB when loading": f"{cached['mebibytes']:,.0f}",
    }


def _images(record: dict[str, Any]) -> dict[str, str]:
    trained = record["trained"]
    return {
        "images": f"{record['images']:,}",
        "five steps and the evaluation, s": f"{trained['seconds']:,.0f}",
        "MiB": f"{trained['mebibytes']:,.0f}",
    }


def _growth(kind: str, texts: list[dict[str, Any]]) -> str:
    chosen = [one for one in texts if one["subwords"] == kind]  # smallest first
    if len(chosen) < 2:
        return ""
    time, memory = (measured.exponent(chosen, quantity) for quantity in ("processor", "mebibytes"))
    largest = sorted({one["pairs"] for one in chosen})[-2:]
    last = [
        measured.exponent([one for one in chosen if one["pairs"] in largest], quantity)
        for quantity in ("processor", "mebibytes")
    ]
    return (
        f"With `{kind}`, CPU time grows as the number of pairs to the power {time:.2f}, memory {memory:.2f}; "
        f"between the two largest sizes, where starting counts least, {last[0]:.2f} and {last[1]:.2f}."
    )


def _figure(path: os.PathLike[str], evidence: Evidence) -> str:
    return f"![Time and memory of preparing parallel text, by size]({os.path.relpath(path, evidence.page)})"
