"""Plain images and a reporter that discards its lines, for tests of image features."""

from PIL import Image


def silent(_: str) -> None: ...


def plain(red: int, green: int, blue: int, width: int = 40, height: int = 30) -> Image.Image:
    return Image.new("RGB", (width, height), (red, green, blue))
