"""What stands still: ground, houses, trees, poles and boxes, drawn once for each camera with its distance by pixel."""

import dataclasses
import functools

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from city import roads

FAR = np.float32(1e6)
SHADOW_SCALE = 6
SKY = np.array([196, 210, 226], np.float32)


@dataclasses.dataclass(eq=False)
class House:
    low: np.ndarray  # [3]
    high: np.ndarray
    color: np.ndarray
    window: tuple  # width and height of a window, of the grid of windows
    plain: bool = False  # a pole or a box on the pavement


@dataclasses.dataclass(eq=False)
class Tree:
    middle: np.ndarray  # [3] of the crown
    radii: np.ndarray
    color: np.ndarray
    trunk: House


class Scenery:
    def __init__(self, rng, city):
        self.city = city
        self.houses, self.trees = [], []
        azimuth, height = rng.uniform(0, 2 * np.pi), rng.uniform(0.45, 1.1)
        self.sun = np.array([np.cos(azimuth) * np.cos(height), np.sin(azimuth) * np.cos(height), np.sin(height)])
        self.sunny = rng.uniform(0.25, 1.0)
        noise = rng.normal(0, 1, (256, 256)).astype(np.float32)
        smooth = Image.fromarray(rng.normal(0, 1, (32, 32)).astype(np.float32)).resize((256, 256), Image.BICUBIC)
        self.noise = np.stack([noise, np.asarray(smooth)])
        self.asphalt = np.array([1, 1, 1.02]) * rng.uniform(78, 112)
        self.pavement = np.array([1.02, 1, 0.96]) * rng.uniform(140, 168)
        self.grass = np.array([86, 112, 60]) * rng.uniform(0.8, 1.15) + rng.normal(0, 6, 3)
        edge = roads.HALF_ROAD + roads.SIDEWALK
        xs = [city.xs[0] - roads.ARM - 20, *city.xs, city.xs[-1] + roads.ARM + 20]
        ys = [city.ys[0] - roads.ARM - 20, *city.ys, city.ys[-1] + roads.ARM + 20]
        for left, right in zip(xs[:-1], xs[1:]):
            for low, high in zip(ys[:-1], ys[1:]):
                self._block(rng, left + edge, low + edge, right - edge, high - edge)
        for x in city.xs:
            for y in city.ys:
                self._corner(rng, x, y)

    def _block(self, rng, left, low, right, high):
        """Houses along the borders of a block, trees and boxes before them."""
        set_back = rng.uniform(1.5, 8)
        for along, across, start, stop, near, far in (
                (0, 1, left, right, low, high), (0, 1, left, right, high, low),
                (1, 0, low, high, left, right), (1, 0, low, high, right, left)):
            inward = 1 if far > near else -1
            at = start + rng.uniform(2, 10)
            while at < stop - 9:
                wide, deep = rng.uniform(9, 20), rng.uniform(8, 13)
                wide = min(wide, stop - at - 1)
                if rng.random() < 0.78 and wide > 7:
                    height = rng.choice([rng.uniform(4, 8), rng.uniform(8, 18)])
                    a = near + inward * set_back
                    b = a + inward * deep
                    low3, high3 = np.zeros(3), np.zeros(3)
                    low3[[along, across]] = at, min(a, b)
                    high3[[along, across]] = at + wide, max(a, b)
                    high3[2] = height
                    base = rng.choice([150, 170, 120, 190, 95])
                    color = np.clip(base * np.array([1 + rng.uniform(0, 0.25), 1.0, 1 - rng.uniform(0, 0.3)]), 30, 235)
                    self.houses.append(House(low3, high3, color, (rng.uniform(2.1, 3.4), rng.uniform(2.8, 3.4))))
                at += wide + rng.choice([0.0, rng.uniform(3, 12)])
            at = start + rng.uniform(4, 14)
            while at < stop - 4:
                place = np.zeros(3)
                place[[along, across]] = at, near - inward * rng.uniform(0.2, 1.2)
                kind = rng.random()
                if kind < 0.5:
                    self._tree(rng, place)
                elif kind < 0.75:
                    self._pole(place, rng.uniform(4.5, 7.5), 0.14)
                else:
                    self._box(rng, place)
                at += rng.uniform(9, 24)

    def _tree(self, rng, place):
        trunk = self._pole(place, 3.0, 0.28, np.array([82, 64, 48.0]))
        radii = np.array([1.0, 1.0, rng.uniform(0.9, 1.5)]) * rng.uniform(1.3, 2.3)
        color = np.array([64, 98, 46]) * rng.uniform(0.75, 1.25) + rng.normal(0, 8, 3)
        self.trees.append(Tree(place + np.array([0, 0, 2.6 + radii[2] * 0.8]), radii, color, trunk))

    def _pole(self, place, height, wide, color=np.array([92, 94, 98.0])):
        half = np.array([wide / 2, wide / 2, 0])
        self.houses.append(House(place - half, place + half + np.array([0, 0, height]), color, (1, 1), plain=True))
        return self.houses[-1]

    def _box(self, rng, place):
        """Bins, cabinets, boards: about as large as parts of vehicles, but none."""
        half = np.array([rng.uniform(0.25, 1.0), rng.uniform(0.25, 1.0), 0])
        color = rng.uniform(30, 225, 3)
        top = np.array([0, 0, rng.uniform(0.9, 2.4)])
        self.houses.append(House(place - half, place + half + top, color, (1, 1), plain=True))

    def _corner(self, rng, x, y):
        """Poles of traffic lights."""
        for sx in (-1, 1):
            for sy in (-1, 1):
                if rng.random() < 0.6:
                    place = np.array([x + sx * rng.uniform(4.6, 5.6), y + sy * rng.uniform(4.6, 5.6), 0])
                    self._pole(place, 3.6, 0.16)
                    head = np.array([0.2, 0.2, 0])
                    self.houses.append(House(place - head + [0, 0, 2.5], place + head + [0, 0, 3.5],
                                             np.array([40, 42, 40.0]), (1, 1), plain=True))

    def clear_view(self, camera):
        """Takes away what would stand right in front of a camera."""
        near = lambda place, metres: np.hypot(*(place[:2] - camera.position[:2])) < metres
        for tree in [tree for tree in self.trees if near(tree.middle, 17)]:
            self.trees.remove(tree)
            self.houses.remove(tree.trunk)
        self.houses = [house for house in self.houses if not (house.plain and near((house.low + house.high) / 2, 12))]

    @functools.cached_property
    def shadows(self):
        """Where the ground is in shadow: an image of the city with SHADOW_SCALE pixels a metre, and its corner."""
        corner = np.array([self.city.xs[0], self.city.ys[0]]) - roads.ARM - 30
        size = np.array([self.city.xs[-1], self.city.ys[-1]]) + roads.ARM + 30 - corner
        image = Image.new("L", tuple((size * SHADOW_SCALE).astype(int)), 0)
        draw = ImageDraw.Draw(image)
        slope = -self.sun[:2] / self.sun[2]
        for house in self.houses:
            (left, low, _), (right, top, height) = house.low, house.high
            base = np.array([(left, low), (right, low), (right, top), (left, top)])
            outline = (hull(np.concatenate([base, base + slope * height])) - corner) * SHADOW_SCALE
            draw.polygon([tuple(p) for p in outline], fill=255)
        for tree in self.trees:
            around = np.arange(16) * np.pi / 8
            for share in np.linspace(-0.8, 0.8, 5):
                middle = tree.middle[:2] + slope * (tree.middle[2] + share * tree.radii[2])
                wide = tree.radii[0] * np.sqrt(1 - share**2) * 0.85
                outline = middle + wide * np.stack([np.cos(around), np.sin(around)], axis=1)
                draw.polygon([tuple(p) for p in (outline - corner) * SHADOW_SCALE], fill=210)
        return np.asarray(image.filter(ImageFilter.BoxBlur(1)), np.float32) / 255, corner

    def shadow(self, x, y):
        """How much of the sun is hidden at places on the ground, 0 to 1."""
        image, corner = self.shadows
        column = ((x - corner[0]) * SHADOW_SCALE).astype(np.int32).clip(0, image.shape[1] - 1)
        row = ((y - corner[1]) * SHADOW_SCALE).astype(np.int32).clip(0, image.shape[0] - 1)
        return image[row, column]

    def in_shadow(self, point):
        return self.shadow(point[:1], point[1:2])[0] > 0.5

    def leaves(self, points):
        """A random number for each small cube of space."""
        cell = np.floor(points / 0.17).astype(np.int64)
        mixed = cell[:, 0] * 73856093 ^ cell[:, 1] * 19349663 ^ cell[:, 2] * 83492791
        return self.noise[0].ravel()[mixed & 65535]

    def grain(self, x, y, scale, which=0):
        column = (x * scale).astype(np.int32) & 255
        row = (y * scale).astype(np.int32) & 255
        return self.noise[which][row, column]


def _slabs(origin, ways, low, high):
    """Where rays enter and leave an axis-aligned box."""
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = 1 / ways
        one, other = (low - origin) * inverse, (high - origin) * inverse
    return np.minimum(one, other).max(axis=-1), np.maximum(one, other).min(axis=-1)


def ground_color(scenery, x, y):
    """Colours [n, 3] of places on the ground."""
    city = scenery.city
    to_avenue = np.min(np.abs(x[:, None] - city.xs[None]), axis=1)
    to_street = np.min(np.abs(y[:, None] - city.ys[None]), axis=1)
    road = np.minimum(to_avenue, to_street)
    color = np.where((road < roads.HALF_ROAD)[:, None], scenery.asphalt,
                     np.where((road < roads.HALF_ROAD + roads.SIDEWALK)[:, None], scenery.pavement, scenery.grass))
    color = color + (scenery.grain(x, y, 14) * np.where(road < roads.HALF_ROAD, 3.5, 5.0))[:, None]
    color += (scenery.grain(x, y, 2.2, 1) * 5)[:, None]
    # Tyres have darkened the lanes.
    worn = np.exp(-((np.abs(road - 1.75) - 0.8) ** 2) / 0.06) * (road < roads.HALF_ROAD)
    color -= (worn * 7)[:, None]
    white = np.array([206, 206, 200])
    kerb = np.abs(road - roads.HALF_ROAD) < 0.12
    color[kerb] = scenery.pavement * 0.8
    joints = (road > roads.HALF_ROAD + 0.12) & (road < roads.HALF_ROAD + roads.SIDEWALK) & \
        ((np.mod(x, 1.5) < 0.06) | (np.mod(y, 1.5) < 0.06))
    color[joints] -= 18
    for distance, other, along in ((to_street, to_avenue, x), (to_avenue, to_street, y)):
        lane = (distance < roads.HALF_ROAD) & (other > roads.JUNCTION)
        middle = lane & (distance < 0.09) & (np.mod(along, 5.0) < 2.6)
        stop = lane & (other < roads.JUNCTION + 0.45)
        zebra = (distance < roads.HALF_ROAD) & (other > roads.JUNCTION - 3.2) & (other < roads.JUNCTION - 0.7) & \
            (np.mod(distance, 1.0) < 0.5)
        for mark in (middle, stop, zebra):
            color[mark] = white + (scenery.grain(x[mark], y[mark], 9) * 8)[:, None]
    return color


def draw(scenery, camera, scale):
    """The picture [h, w, 3] without noise and lens faults, and the distance of what stands upright [h, w]."""
    ways = camera.rays(scale)
    height, width = ways.shape[:2]
    origin = camera.position.astype(np.float32)
    up = np.clip(ways[:, :, 2:3], 0, 1)
    picture = SKY * (1 - 0.35 * up) * (0.75 + 0.25 * scenery.sunny)
    distance = np.where(ways[:, :, 2] < -1e-3, -origin[2] / np.minimum(ways[:, :, 2], -1e-3), FAR)
    on_ground = distance < 300
    far = distance[on_ground]
    x, y = origin[0] + far * ways[on_ground][:, 0], origin[1] + far * ways[on_ground][:, 1]
    color = ground_color(scenery, x, y)
    lit = 1 - scenery.shadow(x, y)
    color *= (ambient(scenery) + sun_part(scenery) * scenery.sun[2] * lit)[:, None]
    picture[on_ground] = color
    upright = np.full((height, width), FAR, np.float32)
    for house in scenery.houses:
        _draw_house(scenery, camera, house, ways, picture, distance, upright, scale)
    for tree in scenery.trees:
        _draw_tree(scenery, camera, tree, ways, picture, distance, upright, scale)
    haze = 1 - np.exp(-np.minimum(distance, 1e3) / 100 * camera.haze)
    picture += (SKY * 0.95 - picture) * haze[:, :, None]
    return picture.astype(np.float32), upright


def ambient(scenery):
    return 0.72 - 0.27 * scenery.sunny


def sun_part(scenery):
    return 0.2 + 0.55 * scenery.sunny


def _area(camera, corners, scale, height, width):
    """The part of the picture where points can be seen; all of it when some are behind the camera."""
    pixels, depth = camera.project(corners, scale)
    if (depth < 0.5).all():
        return None
    if (depth < 0.5).any():
        return slice(0, height), slice(0, width)
    left, top = np.floor(pixels.min(axis=0)).astype(int) - 6
    right, bottom = np.ceil(pixels.max(axis=0)).astype(int) + 6
    left, top, right, bottom = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
    return None if left >= right or top >= bottom else (slice(top, bottom), slice(left, right))


def _draw_house(scenery, camera, house, ways, picture, distance, upright, scale):
    corners = np.array([[x, y, z] for x in (house.low[0], house.high[0]) for y in (house.low[1], house.high[1])
                        for z in (house.low[2], house.high[2])])
    area = _area(camera, corners, scale, *upright.shape)
    if area is None:
        return
    rays = ways[area]
    enter, leave = _slabs(camera.position.astype(np.float32), rays, house.low.astype(np.float32),
                          house.high.astype(np.float32))
    hit = (leave > enter) & (enter > 0.3) & (enter < distance[area])
    if not hit.any():
        return
    far = enter[hit]
    points = camera.position + far[:, None] * rays[hit]
    offsets = np.abs(np.concatenate([points - house.low, points - house.high], axis=1))
    face = offsets.argmin(axis=1)  # 0..2 the lower sides, 3..5 the upper
    normals = np.concatenate([-np.eye(3), np.eye(3)])[face]
    color = np.tile(house.color.astype(float), (len(points), 1))
    if not house.plain:
        wall = face % 3 != 2
        along = np.where(face % 3 == 0, points[:, 1], points[:, 0])
        wide, high = house.window
        column, row = np.floor(along / wide), np.floor(points[:, 2] / high)
        inside = wall & (np.abs(along / wide - column - 0.5) < 0.28) & (np.abs(points[:, 2] / high - row - 0.52) < 0.26)
        shade = scenery.grain(column * 7 + house.low[0], row * 13 + house.low[1], 1.0)
        color[inside] = (np.array([66, 78, 92]) + 16 * shade[inside][:, None])
        color[wall & (points[:, 2] < 0.5)] *= 0.7
        color[~wall] = 110
    light = ambient(scenery) + sun_part(scenery) * np.clip(normals @ scenery.sun, 0, 1)
    color = color * light[:, None] + (scenery.grain(points[:, 0] + points[:, 1], points[:, 2] * 1.3, 9) * 3)[:, None]
    picture[area][hit] = color
    distance[area][hit] = far
    upright[area][hit] = far


def _draw_tree(scenery, camera, tree, ways, picture, distance, upright, scale):
    corners = tree.middle + tree.radii * np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)])
    area = _area(camera, corners, scale, *upright.shape)
    if area is None:
        return
    rays = ways[area] / tree.radii
    offset = (camera.position - tree.middle) / tree.radii
    a, b, c = (rays**2).sum(axis=2), rays @ offset, offset @ offset - 1
    inside = b * b - a * c
    far = (-b - np.sqrt(np.maximum(inside, 0))) / a
    hit = (inside > 0) & (far > 0.3) & (far < distance[area])
    if not hit.any():
        return
    distances = far[hit]
    points = camera.position + distances[:, None] * ways[area][hit]
    normal = (points - tree.middle) / tree.radii
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    leaves = scenery.leaves(points)
    # Fewer leaves where the outline is near.
    dense = leaves > 1.2 - 2.6 * (inside[hit] / (0.35 * a[hit])).clip(0, 1)
    light = ambient(scenery) + sun_part(scenery) * np.clip(normal @ scenery.sun, 0, 1)
    color = tree.color * light[:, None] + leaves[:, None] * 11
    rows, columns = np.nonzero(hit)
    rows, columns = rows[dense], columns[dense]
    picture[area][rows, columns] = color[dense]
    distance[area][rows, columns] = distances[dense]
    upright[area][rows, columns] = distances[dense]


def hull(points):
    """Corners of the convex hull in order (Andrew's monotone chain)."""
    points = sorted(map(tuple, points))

    def half(sequence):
        chain = []
        for p in sequence:
            while len(chain) > 1 and (chain[-1][0] - chain[-2][0]) * (p[1] - chain[-2][1]) \
                    <= (chain[-1][1] - chain[-2][1]) * (p[0] - chain[-2][0]):
                chain.pop()
            chain.append(p)
        return chain[:-1]

    return np.array(half(points) + half(points[::-1]))
