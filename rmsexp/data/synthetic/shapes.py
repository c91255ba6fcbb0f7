"""Synthetic images, a substitute for CIFAR-10: shapes in two families of colours.

Axes of arrays: ``image``; ``y`` and ``x``, in pixels from the upper left corner.
"""

import hashlib

import numpy as np

from rmsexp.data import Images

SIZE = 32
SHAPES = ("disk", "square", "triangle", "cross", "ring")
COLOURS = ("warm", "cool")  # label = index of the shape + len(SHAPES) * index of the colour
HUES = ((-30.0, 60.0), (150.0, 240.0))  # degrees: red to yellow, cyan to blue
RADIUS = (8.0, 13.0)  # least and greatest size of a shape, in pixels: about the distance from its centre to its edge
OFFSET = 6.0  # greatest distance of the labelled shape's centre from the image's along each axis, in pixels
SATURATION, BRIGHTNESS = (0.6, 1.0), (0.6, 1.0)  # least and greatest, of a shape's colour
BACKGROUND_CONTRAST = 0.2  # width of the range, around medium grey, of each channel of the background; white is 1
BACKGROUND_CELLS = 4  # the background is interpolated from a grid of 4 x 4 random colours
NOISE = 0.02  # standard deviation of the noise that is added to pixels in [0, 1]
BLOCK = 500  # images whose random numbers are drawn at a time
PART = 25  # images painted at a time, which fit into a processor's cache


def shapes(n_train: int = 5000, n_test: int = 1000, seed: int = 0) -> Images:
    """Return images of 32 x 32 pixels in ten classes: five shapes, each in two families of colours.

    Place, size, rotation, saturation, brightness and background are random and independent of the class. Training and
    test images come from two random streams.
    """
    train_x, train_y = _draw(n_train, np.random.Generator(np.random.PCG64([seed, 0])))
    test_x, test_y = _draw(n_test, np.random.Generator(np.random.PCG64([seed, 1])))
    content = b"".join(array.tobytes() for array in (train_x, train_y, test_x, test_y))
    digest = hashlib.sha256(content).hexdigest()
    x, y = {"train": train_x, "test": test_x}, {"train": train_y, "test": test_y}
    return Images(x, y, name="shapes", digest=digest, builtin=True)


def _draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 (image, 3, y, x), and their labels, int64 (image,), in random order.

    The numbers of images per class differ by at most one.
    """
    labels = rng.permutation(np.arange(count, dtype=np.int64) % (len(SHAPES) * len(COLOURS)))
    blocks = [_paint(labels[start : start + BLOCK], rng) for start in range(0, count, BLOCK)]
    return np.concatenate(blocks), labels


def _paint(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return random images with these labels, uint8 (image, 3, y, x).

    The last bits of float64 results may differ between processors; rounding to uint8 removes such differences.
    """
    count = len(labels)
    cells = rng.uniform(-0.5, 0.5, (count, 3, BACKGROUND_CELLS, BACKGROUND_CELLS))
    # another shape, of any kind and hue, under the labelled one and partly outside the image
    angle = np.pi * rng.uniform(-1, 1, count)  # direction from the image's centre to the shape's
    centre = SIZE / 2 + 0.6 * SIZE * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    kind, hue = rng.integers(len(SHAPES), size=count), rng.uniform(0, 360, count)
    lower = (kind, centre, *_look(hue, rng))
    colour, kind = np.divmod(labels, len(SHAPES))
    low, high = np.array(HUES)[colour].T
    centre = SIZE / 2 + rng.uniform(-OFFSET, OFFSET, (2, count)).T
    upper = (kind, centre, *_look(rng.uniform(low, high), rng))
    painted = np.empty((count, 3, SIZE, SIZE), np.uint8)
    for part in (slice(start, start + PART) for start in range(0, count, PART)):
        images = _background(cells[part])
        for shape in (lower, upper):
            shown, middle, rgb, radius, turn = (values[part] for values in shape)
            images += _cover(shown, middle, radius, turn)[:, None] * (rgb[:, :, None, None] - images)
        images += NOISE * rng.standard_normal(images.shape)
        painted[part] = np.rint(255 * images.clip(0, 1))
    return painted


def _background(cells: np.ndarray) -> np.ndarray:
    """Return smooth colours, (image, 3, y, x): 4 x 4 cells per image, interpolated with cosines."""
    place = np.linspace(0, BACKGROUND_CELLS - 1, SIZE)
    distance = np.abs(place[:, None] - np.arange(BACKGROUND_CELLS)).clip(max=1)
    blend = (1 + np.cos(np.pi * distance)) / 2  # (y or x, cell): weights of the two nearest cells, which add up to 1
    return 0.5 + BACKGROUND_CONTRAST * (blend @ cells @ blend.T)


def _look(hue: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a random look for one shape per image: RGB colours of these hues, (image, 3); radii; angles, (image,)."""
    count = len(hue)
    colour = _rgb(hue, rng.uniform(*SATURATION, count), rng.uniform(*BRIGHTNESS, count))
    return colour, rng.uniform(*RADIUS, count), rng.uniform(0, 2 * np.pi, count)


def _cover(kind: np.ndarray, centre: np.ndarray, radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Return the part of each pixel that the shape covers, (image, y, x): 0.5 - d, clipped to [0, 1].

    ``kind``, indices of SHAPES, ``radius`` and ``angle`` are (image,). ``centre``, (x, y) in pixels, is (image, 2).
    d is the distance of the pixel's centre from the shape's edge in pixels, negative inside the shape.
    """
    pixels = np.arange(SIZE) + 0.5
    x, y = pixels - centre[:, 0, None, None], pixels[:, None] - centre[:, 1, None, None]
    scale, cosine, sine = (value[:, None, None] for value in (radius, np.cos(angle), np.sin(angle)))
    u, v = (cosine * x + sine * y) / scale, (cosine * y - sine * x) / scale
    distance = np.empty_like(u)  # in units of the radius, negative inside
    for k, name in enumerate(SHAPES):
        matches = kind == k
        distance[matches] = _distance(name, u[matches], v[matches])
    return (0.5 - scale * distance).clip(0, 1)


def _distance(shape: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the distance of points (u, v) from the edge of an upright shape of radius 1, negative inside the shape.

    The constants give the shapes similar areas.
    """
    if shape == "disk":
        return np.hypot(u, v) - 0.8
    if shape == "ring":
        return np.abs(np.hypot(u, v) - 0.72) - 0.26
    p, q = np.abs(u), np.abs(v)
    if shape == "square":
        return np.maximum(p, q) - 0.72
    if shape == "triangle":
        return np.maximum(p * np.sqrt(0.75) + v / 2, -v) - 0.6
    return np.minimum(np.maximum(p - 1, q - 0.32), np.maximum(q - 1, p - 0.32))  # a cross


def _rgb(hue: np.ndarray, saturation: np.ndarray, brightness: np.ndarray) -> np.ndarray:
    """Return RGB colours, (image, 3), in [0, 1], from HSV, (image,) each; ``hue`` is in degrees."""
    sector = (np.array([5, 3, 1]) + hue[:, None] / 60) % 6
    return brightness[:, None] * (1 - saturation[:, None] * np.minimum(sector, 4 - sector).clip(0, 1))
