"""Compute the features of a folder of images for order-embedding, and write them to a .npy file.

The file has float32 numbers of shape (images, 4096), in the order of ``--names`` or of the sorted file names; each row
has unit length.

After an interruption, the same command continues at the first shard of 500 images that is missing.

    python scripts/extract_image_features.py ~/data/coco/val2014 features.npy --kind vgg19 --names val.txt
"""

import argparse
import shutil
import sys
from pathlib import Path

from rmsexp.data import DataError
from rmsexp.data.files import read_lines
from rmsexp.data.image_features import KINDS, extract

SUFFIXES = (".jpg", ".jpeg", ".png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, metavar="IMAGES", help="folder of images")
    parser.add_argument("target", type=Path, metavar="TARGET.npy", help="file to write")
    parser.add_argument("--kind", choices=KINDS, default="descriptor", help="kind of features (%(default)s)")
    parser.add_argument(
        "--names", type=Path, help="text file with one image name per line (default: all images of the folder)"
    )
    arguments = parser.parse_args()
    if arguments.names and not arguments.names.is_file():
        parser.error(f"--names {arguments.names} is no file")
    if arguments.target.suffix != ".npy" or arguments.target.is_dir():
        parser.error(f"{arguments.target} is no .npy file")
    try:
        if arguments.names:
            images = [arguments.images / line.rstrip("\r") for line in read_lines(arguments.names)]
        else:
            files = sorted(path for path in arguments.images.glob("*") if path.is_file())
            images = [path for path in files if path.suffix.lower() in SUFFIXES]
            if others := [path.name for path in files if path not in images]:
                print(f"left out: {len(others)} files that do not end in {', '.join(SUFFIXES)}, such as {others[0]}")
        if not images:
            sys.exit(f"There are no images in {arguments.images} ({', '.join(SUFFIXES)}).")
        work = arguments.target.with_name(f".{arguments.target.name}.work")
        extract(images, arguments.kind, work, lambda text: print(text, flush=True)).replace(arguments.target)
        shutil.rmtree(work)
    except DataError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
