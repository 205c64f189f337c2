"""Random scenes: what is in them and how they are drawn."""

import colorsys
import io

import numpy as np
from PIL import Image, ImageDraw

SIDE = 128
GRID = 4
CELL = SIDE // GRID

SHAPES = ["circle", "square", "triangle", "star"]
COLORS = ["red", "orange", "yellow", "green", "blue", "purple"]
SIZES = ["small", "large"]
TEXTURES = ["plain", "striped", "dotted"]

# The groups of one cell of the scene descriptor, in the order in which they are stored.
GROUPS = {"shape": SHAPES, "color": COLORS, "size": SIZES, "texture": TEXTURES}
CELL_WIDTH = 1 + sum(len(values) for values in GROUPS.values())
FEATURE_WIDTH = GRID * GRID * CELL_WIDTH

HUES = {"red": 0, "orange": 27, "yellow": 55, "green": 125, "blue": 220, "purple": 285}
HUE_JITTER = {"red": 7, "orange": 7, "yellow": 7, "green": 16, "blue": 14, "purple": 14}
SUPERSAMPLE = 2


def random_scene(rng):
    """Two to five objects in different cells of the grid."""
    count = int(rng.integers(2, 6))
    cells = rng.choice(GRID * GRID, size=count, replace=False)
    objects = []
    for cell in cells:
        item = {group: values[int(rng.integers(len(values)))] for group, values in GROUPS.items()}
        # Scenes with repeated properties make counting and comparing worthwhile.
        if objects and rng.random() < 0.35:
            group = ["shape", "color"][int(rng.integers(2))]
            item[group] = objects[int(rng.integers(len(objects)))][group]
        item["cell"] = int(cell)
        objects.append(item)
    return objects


def _mask(shape, radius, angle, center):
    """The object's silhouette, drawn larger and scaled down for smooth edges."""
    scale = SUPERSAMPLE
    image = Image.new("L", (SIDE * scale, SIDE * scale), 0)
    draw = ImageDraw.Draw(image)
    cx, cy = center[0] * scale, center[1] * scale
    r = radius * scale
    if shape == "circle":
        draw.ellipse([cx - r, cy - r, cx + r, cy + r], fill=255)
    else:
        if shape == "square":
            steps, radii = 4, [1.2]
        elif shape == "triangle":
            steps, radii = 3, [1.25]
        else:
            steps, radii = 10, [1.25, 0.52]
        points = []
        for i in range(steps):
            a = angle + 2 * np.pi * i / steps
            k = r * radii[i % len(radii)]
            points.append((cx + k * np.cos(a), cy + k * np.sin(a)))
        draw.polygon(points, fill=255)
    image = image.resize((SIDE, SIDE), Image.BOX)
    return np.asarray(image, dtype=np.float32) / 255.0


def _texture(kind, rng, xs, ys):
    """How much of the second shade shows at each pixel, 0 to 1."""
    if kind == "plain":
        return np.zeros_like(xs)
    angle = rng.uniform(0, np.pi)
    period = rng.uniform(4.6, 6.2)
    u = xs * np.cos(angle) + ys * np.sin(angle)
    v = -xs * np.sin(angle) + ys * np.cos(angle)
    phase = rng.uniform(0, 2 * np.pi, size=2)
    wave_u = np.sin(2 * np.pi * u / period + phase[0])
    if kind == "striped":
        return np.clip(0.5 + 1.6 * wave_u, 0, 1)
    wave_v = np.sin(2 * np.pi * v / period + phase[1])
    return np.clip(0.5 + 2.0 * (wave_u + wave_v - 0.75), 0, 1)


def render(objects, rng):
    """The scene as an RGB array of bytes."""
    ys, xs = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    tint = rng.uniform(0.9, 1.1, size=3)
    image = np.ones((SIDE, SIDE, 3), np.float32) * rng.uniform(70, 190) * tint
    coarse = rng.normal(0, rng.uniform(2, 14), size=(8, 8)).astype(np.float32)
    blotches = np.asarray(Image.fromarray(coarse).resize((SIDE, SIDE), Image.BICUBIC))
    image += blotches[:, :, None]

    for item in objects:
        row, column = divmod(item["cell"], GRID)
        jitter = rng.uniform(-4, 4, size=2)
        center = ((column + 0.5) * CELL + jitter[0], (row + 0.5) * CELL + jitter[1])
        radius = rng.uniform(6.2, 8.4) if item["size"] == "small" else rng.uniform(10.8, 14.0)
        mask = _mask(item["shape"], radius, rng.uniform(0, 2 * np.pi), center)
        hue = HUES[item["color"]] + rng.uniform(-1, 1) * HUE_JITTER[item["color"]]
        base = np.array(
            colorsys.hsv_to_rgb((hue % 360) / 360, rng.uniform(0.7, 1), rng.uniform(0.65, 1))
        )
        shade = base * rng.uniform(0.35, 0.6) if rng.random() < 0.5 else base * 0.4 + 0.6 * 0.95
        blend = _texture(item["texture"], rng, xs, ys)[:, :, None]
        color = 255 * (base * (1 - blend) + shade * blend)
        image = image * (1 - mask[:, :, None]) + color * mask[:, :, None]

    # Uneven light: a slope and a soft spot.
    angle = rng.uniform(0, 2 * np.pi)
    slope = ((xs - SIDE / 2) * np.cos(angle) + (ys - SIDE / 2) * np.sin(angle)) / SIDE
    spot_x, spot_y = rng.uniform(0, SIDE, size=2)
    spot = np.exp(-((xs - spot_x) ** 2 + (ys - spot_y) ** 2) / (2 * 40.0**2))
    light = 0.95 + rng.uniform(0, 0.5) * slope + rng.uniform(-0.3, 0.2) * spot
    image = image * light[:, :, None]
    image += rng.normal(0, rng.uniform(4, 20), size=image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def encode_jpeg(pixels, rng):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=int(rng.integers(65, 86)))
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
