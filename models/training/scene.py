"""Random scenes: what is in them and how they are drawn."""

import colorsys
import io

import numpy as np
from PIL import Image, ImageDraw

SIDE = 256
GRID = 4
CELL = SIDE // GRID
MOST_OBJECTS = 8

SHAPES = ["circle", "square", "triangle", "star", "pentagon", "hexagon", "cross", "ring"]
COLORS = ["red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink"]
SIZES = ["small", "medium", "large"]
TEXTURES = ["plain", "striped", "dotted", "checkered"]

# The groups of one cell of the scene descriptor, in the order in which they are stored.
GROUPS = {"shape": SHAPES, "color": COLORS, "size": SIZES, "texture": TEXTURES}
CELL_WIDTH = 1 + sum(len(values) for values in GROUPS.values())
FEATURE_WIDTH = GRID * GRID * CELL_WIDTH

HUES = {"red": 0, "orange": 25, "yellow": 53, "green": 115, "cyan": 178, "blue": 222,
        "purple": 270, "pink": 318}
HUE_JITTER = {"red": 8, "orange": 7, "yellow": 8, "green": 18, "cyan": 12, "blue": 14,
              "purple": 14, "pink": 13}
RADII = {"small": (12.0, 14.5), "medium": (17.0, 20.0), "large": (23.5, 28.0)}
# Corners of the regular shapes, and how much larger they are drawn so that areas are alike.
CORNERS = {"square": (4, 1.2), "triangle": (3, 1.3), "pentagon": (5, 1.12), "hexagon": (6, 1.08)}
TEXTURE_PERIOD = (3.4, 5.4)
SUPERSAMPLE = 3


def random_scene(rng):
    """Three to eight objects in different cells of the grid."""
    count = int(rng.integers(3, MOST_OBJECTS + 1))
    cells = rng.choice(GRID * GRID, size=count, replace=False)
    objects = []
    for cell in cells:
        item = {group: values[int(rng.integers(len(values)))] for group, values in GROUPS.items()}
        # Scenes with repeated properties make counting and comparing worthwhile.
        if objects and rng.random() < 0.45:
            group = ["shape", "color"][int(rng.integers(2))]
            item[group] = objects[int(rng.integers(len(objects)))][group]
        item["cell"] = int(cell)
        objects.append(item)
    return objects


def _outline(shape, angle):
    """Corners on and around the unit circle."""
    if shape == "star":
        radii = [1.3, 0.55] * 5
    elif shape == "cross":
        arm = 0.42
        corners = [(1.15, -arm), (1.15, arm), (arm, arm), (arm, 1.15), (-arm, 1.15), (-arm, arm),
                   (-1.15, arm), (-1.15, -arm), (-arm, -arm), (-arm, -1.15), (arm, -1.15),
                   (arm, -arm)]
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        return np.array(corners) @ turn.T
    else:
        count, radius = CORNERS[shape]
        radii = [radius] * count
    angles = angle + 2 * np.pi * np.arange(len(radii)) / len(radii)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.array(radii)[:, None]


def _mask(shape, radius, angle, center, width, height):
    """The object's silhouette, drawn larger and scaled down for smooth edges."""
    scale = SUPERSAMPLE
    image = Image.new("L", (width * scale, height * scale), 0)
    draw = ImageDraw.Draw(image)
    cx, cy, r = center[0] * scale, center[1] * scale, radius * scale
    if shape in ("circle", "ring"):
        draw.ellipse([cx - r, cy - r, cx + r, cy + r], fill=255)
        if shape == "ring":
            r *= 0.5
            draw.ellipse([cx - r, cy - r, cx + r, cy + r], fill=0)
    else:
        points = _outline(shape, angle) * r + np.array([cx, cy])
        draw.polygon([tuple(point) for point in points], fill=255)
    image = image.resize((width, height), Image.BOX)
    return np.asarray(image, dtype=np.float32)[:, :, None] / 255


def _texture(kind, rng, xs, ys):
    """How much of the second shade shows at each pixel, 0 to 1."""
    angle = rng.uniform(0, np.pi)
    period = rng.uniform(*TEXTURE_PERIOD)
    phase = rng.uniform(0, 2 * np.pi, size=2)
    if kind == "plain":
        return np.zeros_like(xs)
    u = xs * np.cos(angle) + ys * np.sin(angle)
    v = -xs * np.sin(angle) + ys * np.cos(angle)
    wave_u = np.sin(2 * np.pi * u / period + phase[0])
    if kind == "striped":
        return np.clip(0.5 + 1.6 * wave_u, 0, 1)
    wave_v = np.sin(2 * np.pi * v / period + phase[1])
    if kind == "dotted":
        return np.clip(0.5 + 2.0 * (wave_u + wave_v - 0.75), 0, 1)
    return np.clip(0.5 + 2.5 * wave_u * wave_v, 0, 1)


def _draw_object(image, item, rng):
    row, column = divmod(item["cell"], GRID)
    jitter = rng.uniform(-9, 9, size=2)
    x, y = (column + 0.5) * CELL + jitter[0], (row + 0.5) * CELL + jitter[1]
    radius = rng.uniform(*RADII[item["size"]])
    reach = 1.4 * radius
    left, top = max(0, int(x - reach)), max(0, int(y - reach))
    right, bottom = min(SIDE, int(x + reach) + 1), min(SIDE, int(y + reach) + 1)
    mask = _mask(item["shape"], radius, rng.uniform(0, 2 * np.pi), (x - left, y - top),
                 right - left, bottom - top)
    ys, xs = np.mgrid[top:bottom, left:right].astype(np.float32)
    hue = HUES[item["color"]] + rng.uniform(-1, 1) * HUE_JITTER[item["color"]]
    base = np.array(
        colorsys.hsv_to_rgb((hue % 360) / 360, rng.uniform(0.5, 1), rng.uniform(0.6, 1))
    )
    if rng.random() < 0.5:
        shade = base * rng.uniform(0.35, 0.65)
    else:
        shade = base + (1 - base) * rng.uniform(0.45, 0.75)
    blend = _texture(item["texture"], rng, xs, ys)[:, :, None]
    color = 255 * (base * (1 - blend) + shade * blend)
    part = image[top:bottom, left:right]
    part += (color - part) * mask


def _clutter(image, rng):
    """Thin lines and specks over everything."""
    picture = Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    color = lambda: tuple(int(c) for c in rng.integers(20, 236, size=3))
    for _ in range(int(rng.integers(1, 6))):
        draw.line([tuple(p) for p in rng.uniform(0, SIDE, size=(2, 2))], fill=color(),
                  width=int(rng.integers(1, 3)))
    for _ in range(int(rng.integers(8, 30))):
        x, y = rng.uniform(0, SIDE, size=2)
        r = rng.uniform(1, 3.5)
        draw.ellipse([x - r, y - r, x + r, y + r], fill=color())
    return np.asarray(picture).astype(np.float32)


def render(objects, rng):
    """The scene as an RGB array of bytes."""
    tint = rng.uniform(0.9, 1.1, size=3).astype(np.float32)
    image = np.ones((SIDE, SIDE, 3), np.float32) * np.float32(rng.uniform(60, 200)) * tint
    coarse = rng.normal(0, rng.uniform(4, 20), size=(12, 12)).astype(np.float32)
    blotches = np.asarray(Image.fromarray(coarse).resize((SIDE, SIDE), Image.BICUBIC))
    image += blotches[:, :, None]
    for item in objects:
        _draw_object(image, item, rng)
    image = _clutter(image, rng)

    # Uneven light: a slope and a soft spot.
    ys, xs = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    slope = ((xs - SIDE / 2) * np.cos(angle) + (ys - SIDE / 2) * np.sin(angle)) / SIDE
    spot_x, spot_y = rng.uniform(0, SIDE, size=2)
    spot = np.exp(-((xs - spot_x) ** 2 + (ys - spot_y) ** 2) / (2 * 80.0**2))
    light = 0.95 + rng.uniform(0, 0.5) * slope + rng.uniform(-0.35, 0.2) * spot
    image *= light[:, :, None].astype(np.float32)
    image += rng.standard_normal(image.shape, dtype=np.float32) * np.float32(rng.uniform(3, 16))
    return np.clip(image, 0, 255).astype(np.uint8)


def encode_jpeg(pixels, rng):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=int(rng.integers(60, 81)))
    return buffer.getvalue()


def descriptor_targets(objects):
    """Class indices per cell: [16, 5] of presence and the four groups (-1: no object)."""
    target = np.full((GRID * GRID, 1 + len(GROUPS)), -1, np.int64)
    target[:, 0] = 0
    for item in objects:
        target[item["cell"], 0] = 1
        for i, (group, values) in enumerate(GROUPS.items()):
            target[item["cell"], 1 + i] = values.index(item[group])
    return target
