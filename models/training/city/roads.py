"""The map of a city: a grid of two-way streets with one lane a direction, and ways in and out at its border."""

import dataclasses
import math

import numpy as np

LANE = 3.5
HALF_ROAD = LANE
SIDEWALK = 2.6
JUNCTION = 9.0  # from the middle of a junction to its stop lines
ARM = 75.0  # length of the streets that lead out of the city
DIRECTIONS = [(1, 0), (0, 1), (-1, 0), (0, -1)]


def right_of(direction):
    return np.array([direction[1], -direction[0]], float)


@dataclasses.dataclass
class Segment:
    """A piece of a lane: along a street, or across a junction."""

    name: tuple
    points: np.ndarray  # [n, 2]
    junction: tuple | None  # of which it is a way across
    length: float = 0.0

    def __post_init__(self):
        steps = np.diff(self.points, axis=0)
        self.length = float(np.hypot(steps[:, 0], steps[:, 1]).sum())


class Roads:
    """`columns` x `rows` junctions with blocks of random sizes."""

    def __init__(self, rng, columns=3, rows=2):
        self.columns, self.rows = columns, rows
        self.xs = np.concatenate([[0], np.cumsum(rng.uniform(78, 104, columns - 1))])
        self.ys = np.concatenate([[0], np.cumsum(rng.uniform(70, 92, rows - 1))])
        self.segments = {}
        self._conflicts = {}

    def is_junction(self, node):
        return 0 <= node[0] < self.columns and 0 <= node[1] < self.rows

    def place(self, node):
        """The middle of a junction, or the end of a street that leads out."""
        column, row = node
        x = self.xs[0] - ARM if column < 0 else self.xs[-1] + ARM if column >= self.columns else self.xs[column]
        y = self.ys[0] - ARM if row < 0 else self.ys[-1] + ARM if row >= self.rows else self.ys[row]
        return np.array([x, y])

    def entries(self):
        """Streets that lead in: (node outside, direction)."""
        found = []
        for column in range(self.columns):
            found += [((column, -1), (0, 1)), ((column, self.rows), (0, -1))]
        for row in range(self.rows):
            found += [((-1, row), (1, 0)), ((self.columns, row), (-1, 0))]
        return found

    def street_name(self, node, direction):
        """What a street is called, whatever the direction: `x0-x1 y0` and the like would tell nobody anything."""
        if direction[0]:
            return f"street-{'abcdefgh'[node[1]]}"
        return f"avenue-{node[0] + 1}"

    def lane(self, node, direction):
        """The lane from a node to the next one in this direction."""
        name = (node, direction)
        if name not in self.segments:
            onward = (node[0] + direction[0], node[1] + direction[1])
            way, aside = np.array(direction, float), right_of(direction) * LANE / 2
            start = self.place(node) + aside + (way * JUNCTION if self.is_junction(node) else 0)
            end = self.place(onward) + aside - (way * JUNCTION if self.is_junction(onward) else 0)
            self.segments[name] = Segment(name, np.array([start, end]), None)
        return self.segments[name]

    def crossing(self, node, before, after):
        """The way across a junction from one direction to another."""
        name = (node, before, after)
        if name not in self.segments:
            middle = self.place(node)
            start = middle - np.array(before) * JUNCTION + right_of(before) * LANE / 2
            end = middle + np.array(after) * JUNCTION + right_of(after) * LANE / 2
            if before == after:
                points = np.array([start, end])
            else:
                # Where the two lanes' middle lines meet.
                corner = np.where(np.array(before) != 0, end, start)
                t = np.linspace(0, 1, 13)[:, None]
                points = (1 - t) ** 2 * start + 2 * t * (1 - t) * corner + t**2 * end
            self.segments[name] = Segment(name, points, node)
        return self.segments[name]

    def route(self, rng, node, direction):
        """A random way through the city from outside to outside."""
        segments = [self.lane(node, direction)]
        for _ in range(40):
            node = (node[0] + direction[0], node[1] + direction[1])
            if not self.is_junction(node):
                break
            at = DIRECTIONS.index(direction)
            turn = rng.choice([0, 1, -1], p=[0.5, 0.22, 0.28])
            onward = DIRECTIONS[(at + turn) % 4]
            segments += [self.crossing(node, direction, onward), self.lane(node, onward)]
            direction = onward
        return segments

    def in_conflict(self, one, other):
        """Whether two ways across the same junction come too close to each other for two vehicles at a time."""
        key = (one.name, other.name)
        if key not in self._conflicts:
            if one.name[1] == other.name[1]:
                conflict = False  # they come from the same lane, one behind the other
            else:
                a, b = dense(one.points), dense(other.points)
                apart = np.hypot(a[:, None, 0] - b[None, :, 0], a[:, None, 1] - b[None, :, 1])
                conflict = bool(apart.min() < 2.9)
            self._conflicts[key] = self._conflicts[other.name, one.name] = conflict
        return self._conflicts[key]


def dense(points, step=0.7):
    """Points at most so far from each other along the same line."""
    parts = [points[:1]]
    for start, end in zip(points[:-1], points[1:]):
        count = max(1, math.ceil(np.hypot(*(end - start)) / step))
        parts.append(start + (end - start) * (np.arange(1, count + 1) / count)[:, None])
    return np.concatenate(parts)
