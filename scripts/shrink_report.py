"""Make the report of the committed records as small as a clone needs it (``make report``).

    python scripts/shrink_report.py [FOLDER]        # default: results/reference/report

What stays: ``report.md``, which has all tables, the CSV files beside it, and the figures that it shows, as PNG of at
most 1,600 pixels in width and 128 colours. Other files of settings, SVG and the HTML page repeat them.
"""

import argparse
import io
from pathlib import Path

from PIL import Image

WIDTH, COLOURS = 1600, 128


def shrink(folder: Path) -> None:
    """Delete what the committed report does not need, and make its figures smaller."""
    kept = {*folder.glob("report.md"), *folder.glob("*.csv"), *folder.rglob("*.png")}
    for path in sorted(folder.rglob("*"), reverse=True):  # the files of a folder before the folder
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in kept:
            path.unlink()
        elif path.suffix == ".png":
            path.write_bytes(smaller(path.read_bytes()))


def smaller(picture: bytes) -> bytes:
    """Return a picture in PNG format with fewer pixels and colours; one that is small already is returned as it is."""
    with Image.open(io.BytesIO(picture)) as image:
        if image.mode == "P" and image.width <= WIDTH:
            return picture
        height = round(image.height * WIDTH / image.width)
        resized = image.convert("RGB").resize((WIDTH, height)) if image.width > WIDTH else image.convert("RGB")
    result = io.BytesIO()
    resized.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(result, "PNG", optimize=True)
    return result.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).parents[1] / "results/reference/report"
    parser.add_argument("folder", type=Path, nargs="?", default=default, help="the folder of the report")
    shrink(parser.parse_args().folder)


if __name__ == "__main__":
    main()
