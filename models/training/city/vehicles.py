"""What vehicles look like: type, colour, texture and marks make an identity, and solids with decals make a shape.

A shape is a list of parts from the lowest to the highest; a part is a frustum, whose five outer faces are quads; on a
face lie decals, polygons in its own coordinates (u to the front or to the side, v upwards, both 0 to 1).
Coordinates of a vehicle: x to its front, y to its left, z up, the origin below its middle.
"""

import dataclasses

import numpy as np

# type: length, width, height, share among vehicles
TYPES = {
    "hatchback": (3.95, 1.75, 1.50, 0.24), "saloon": (4.65, 1.82, 1.44, 0.26),
    "estate": (4.75, 1.92, 1.72, 0.18), "van": (5.3, 2.0, 2.25, 0.14),
    "truck": (7.2, 2.4, 3.1, 0.11), "bus": (10.2, 2.5, 3.05, 0.07),
}
CLASSES = ["car", "van", "truck", "bus"]
CLASS_OF = {"hatchback": 0, "saloon": 0, "estate": 0, "van": 1, "truck": 2, "bus": 3}

COLORS = {
    "white": (228, 228, 226), "silver": (172, 175, 180), "grey": (104, 108, 113), "black": (34, 35, 39),
    "blue": (38, 74, 152), "light blue": (106, 156, 205), "red": (168, 30, 34), "wine": (98, 26, 42),
    "green": (36, 92, 58), "yellow": (224, 182, 34), "orange": (214, 104, 32), "brown": (102, 74, 52),
    "beige": (198, 182, 146),
}
COLOR_SHARES = np.array([0.17, 0.14, 0.13, 0.13, 0.11, 0.06, 0.09, 0.03, 0.04, 0.03, 0.03, 0.02, 0.02])
ACCENTS = [(235, 235, 235), (25, 25, 28), (205, 40, 36), (32, 84, 178), (240, 196, 30), (34, 132, 74), (240, 122, 30)]
SIDE_MARKS = ["none", "stripe", "two stripes", "disc", "panel", "wedge", "dots", "bars"]
SIDE_SHARES = np.array([0.30, 0.13, 0.08, 0.11, 0.12, 0.10, 0.08, 0.08])
TOP_MARKS = ["none", "stripe", "two stripes", "other colour", "box", "sign", "disc", "rails"]
TOP_SHARES = np.array([0.34, 0.10, 0.08, 0.14, 0.10, 0.08, 0.07, 0.09])
GLASS = (40, 48, 58)
RUBBER = (24, 24, 26)


@dataclasses.dataclass
class Looks:
    """The identity of a vehicle. Sizes vary a little within a type."""

    kind: str
    size: tuple  # length, width, height
    color: tuple
    accent: tuple
    side: str
    top: str
    second: tuple  # of roofs and loads in another colour
    at: float  # where marks lie along a side, 0 to 1
    glass: float  # 0 dark to 1 pale
    dirt: float


def random_looks(rng):
    kinds = list(TYPES)
    kind = kinds[rng.choice(len(kinds), p=[TYPES[k][3] for k in kinds])]
    names = list(COLORS)
    color = np.array(COLORS[names[rng.choice(len(names), p=COLOR_SHARES)]], float)
    color = np.clip(color * rng.uniform(0.88, 1.1) + rng.normal(0, 6, 3), 8, 245)
    far = [a for a in ACCENTS if np.abs(np.array(a) - color).max() > 90]
    pick = lambda: far[rng.integers(len(far))]
    return Looks(
        kind=kind, size=tuple(np.array(TYPES[kind][:3]) * rng.uniform(0.96, 1.04, 3)), color=tuple(color), accent=pick(),
        side=SIDE_MARKS[rng.choice(len(SIDE_MARKS), p=SIDE_SHARES)],
        top=TOP_MARKS[rng.choice(len(TOP_MARKS), p=TOP_SHARES)], second=pick(), at=rng.uniform(0.25, 0.75),
        glass=rng.uniform(0, 1), dirt=rng.uniform(0, 0.25))


def frustum(bottom, top, width, z):
    """Corners of the five outer faces: (rear, front) at the bottom and at the top, widths, heights."""
    (rear, front), (rear_top, front_top) = bottom, top
    (wide, wide_top), (low, high) = width, z
    at = lambda x, y, z: (x, y, z)
    w, t = wide / 2, wide_top / 2
    corner = {
        "left": [at(rear, w, low), at(front, w, low), at(front_top, t, high), at(rear_top, t, high)],
        "right": [at(rear, -w, low), at(front, -w, low), at(front_top, -t, high), at(rear_top, -t, high)],
        "front": [at(front, -w, low), at(front, w, low), at(front_top, t, high), at(front_top, -t, high)],
        "rear": [at(rear, -w, low), at(rear, w, low), at(rear_top, t, high), at(rear_top, -t, high)],
        "top": [at(rear_top, -t, high), at(front_top, -t, high), at(front_top, t, high), at(rear_top, t, high)],
    }
    return {name: np.array(points, float) for name, points in corner.items()}


def on_face(face, places):
    """Points of (u, v) of a face: bilinear between its corners 00, 10, 11, 01."""
    uv = np.asarray(places, float)
    u, v = uv[:, :1], uv[:, 1:]
    return (1 - u) * (1 - v) * face[0] + u * (1 - v) * face[1] + u * v * face[2] + (1 - u) * v * face[3]


def box(u0, v0, u1, v1):
    return [(u0, v0), (u1, v0), (u1, v1), (u0, v1)]


def round_of(face, u, v, radius, corners=10):
    """A circle on a face: its radius in metres."""
    wide, high = np.linalg.norm(face[1] - face[0]), np.linalg.norm(face[3] - face[0])
    angles = 2 * np.pi * np.arange(corners) / corners
    return np.stack([u + radius / wide * np.cos(angles), v + radius / high * np.sin(angles)], axis=1)


class Shape:
    """Polygons in the order in which they are painted, with what decides whether and how bright they are."""

    def __init__(self):
        self.points, self.colors, self.hosts = [], [], []
        self.normals, self.centers = [], []

    def part(self, faces, colors, decals=()):
        """A frustum; `colors` is one or a dictionary by face with the key `else`; decals: (face, places, color)."""
        if not isinstance(colors, dict):
            colors = {"else": colors}
        inside = np.mean([face.mean(axis=0) for face in faces.values()], axis=0)
        for name, face in faces.items():
            normal = np.cross(face[1] - face[0], face[3] - face[0])
            normal /= np.linalg.norm(normal)
            center = face.mean(axis=0)
            if normal @ (center - inside) < 0:
                normal = -normal
            host = len(self.normals)
            self.normals.append(normal)
            self.centers.append(center)
            self._add(face, colors.get(name, colors["else"]), host)
            for where, places, color in decals:
                if where == name or (where == "sides" and name in ("left", "right")):
                    self._add(on_face(face, places), color, host)

    def _add(self, points, color, host):
        self.points.append(points)
        self.colors.append(color)
        self.hosts.append(host)

    def finish(self):
        self.counts = np.array([len(p) for p in self.points])
        self.ends = np.cumsum(self.counts)
        self.points = np.concatenate(self.points)
        self.colors = np.array(self.colors, float)
        self.hosts = np.array(self.hosts)
        self.normals, self.centers = np.array(self.normals), np.array(self.centers)
        return self


def side_decals(looks, face, low=0.1, high=0.9):
    """The marks of a side between two heights of a face."""
    accent, at, tall = looks.accent, looks.at, high - low
    if looks.side == "stripe":
        return [("sides", box(0.02, low + 0.35 * tall, 0.98, low + 0.6 * tall), accent)]
    if looks.side == "two stripes":
        return [("sides", box(0.02, low + a * tall, 0.98, low + (a + 0.16) * tall), accent) for a in (0.25, 0.6)]
    if looks.side == "disc":
        return [("sides", round_of(face, at, low + 0.5 * tall, 0.38), accent)]
    if looks.side == "panel":
        return [("sides", box(at - 0.2, low, at + 0.2, high), accent)]
    if looks.side == "wedge":
        return [("sides", [(0.0, low), (at, low), (at + 0.2, high), (0.0, high)], accent)]
    if looks.side == "dots":
        return [("sides", round_of(face, u, low + 0.5 * tall, 0.22, 8), accent) for u in np.linspace(0.2, 0.8, 4)]
    if looks.side == "bars":
        return [("sides", box(u, low, u + 0.05, high), accent) for u in np.linspace(0.18, 0.78, 5)]
    return []


def top_decals(looks):
    if looks.top == "stripe":
        return [("top", box(0.0, 0.36, 1.0, 0.64), looks.accent)]
    if looks.top == "two stripes":
        return [("top", box(0.0, v, 1.0, v + 0.16), looks.accent) for v in (0.22, 0.62)]
    if looks.top == "disc":
        return [("top", [(0.5 + 0.3 * np.cos(a), 0.5 + 0.4 * np.sin(a)) for a in np.arange(10) * 0.2 * np.pi],
                 looks.accent)]
    return []


def glass_of(looks):
    return tuple(np.array(GLASS, float) + 38 * looks.glass)


def wheels(face, places, radius, low):
    """Wheels at distances from the rear end, as circles that reach below the face."""
    wide, high = np.linalg.norm(face[1] - face[0]), np.linalg.norm(face[3] - face[0])
    decals = []
    for place in places:
        u, v = place / wide, (radius - low) / high
        decals.append(("sides", round_of(face, u, v, radius, 12), RUBBER))
        decals.append(("sides", round_of(face, u, v, radius * 0.55, 8), (142, 144, 148)))
    return decals


def front_decals(looks):
    return [("front", box(0.04, 0.52, 0.22, 0.82), (238, 236, 220)), ("front", box(0.78, 0.52, 0.96, 0.82), (238, 236, 220)),
            ("front", box(0.28, 0.45, 0.72, 0.8), (30, 30, 33)), ("front", box(0.36, 0.12, 0.64, 0.32), (230, 230, 224)),
            ("rear", box(0.02, 0.5, 0.2, 0.9), (168, 18, 20)), ("rear", box(0.8, 0.5, 0.98, 0.9), (168, 18, 20)),
            ("rear", box(0.36, 0.35, 0.64, 0.6), (230, 226, 190))]


def roof_load(shape, looks, span, width, top):
    """What stands on a roof."""
    rear, front = span
    middle = (rear + front) / 2
    if looks.top == "box":
        shape.part(frustum((rear + 0.1, middle + 0.5), (rear + 0.2, middle + 0.35), (width * 0.6, width * 0.5),
                           (top, top + 0.36)), looks.second)
    elif looks.top == "sign":
        shape.part(frustum((middle - 0.15, middle + 0.15), (middle - 0.1, middle + 0.1), (0.8, 0.7), (top, top + 0.28)),
                   looks.second)
    elif looks.top == "rails":
        for side in (-1, 1):
            rails = frustum((rear + 0.1, front - 0.1), (rear + 0.15, front - 0.15), (0.1, 0.08), (top, top + 0.1))
            for face in rails.values():
                face[:, 1] += side * width * 0.38
            shape.part(rails, (196, 196, 200))


def car(looks):
    length, width, height = looks.size
    rear, front = -length / 2, length / 2
    belt = height * 0.6
    color, glass = looks.color, glass_of(looks)
    shape = Shape()
    shape.part(frustum((rear + 0.15, front - 0.15), (rear + 0.1, front - 0.1), (width * 0.92, width * 0.95), (0.16, 0.36)),
               (22, 22, 24))
    body = frustum((rear, front), (rear + 0.02, front - 0.04), (width, width), (0.3, belt * 0.72))
    decals = side_decals(looks, body["left"], 0.12, 0.95) + wheels(body["left"], (0.2 * length, 0.8 * length), 0.33, 0.3)
    shape.part(body, color, decals + front_decals(looks))
    shoulder = frustum((rear + 0.02, front - 0.04), (rear + 0.12, front - 0.3), (width, width * 0.93), (belt * 0.72, belt))
    hood = [("top", places, c) for where, places, c in top_decals(looks) if looks.top in ("stripe", "two stripes")]
    shape.part(shoulder, color, hood)
    ends = {"hatchback": (rear + 0.1, rear + 0.5, 0.22, 0.02), "saloon": (rear + 0.55, rear + 1.3, 0.2, 0.02),
            "estate": (rear + 0.08, rear + 0.32, 0.22, 0.0)}[looks.kind]
    start, start_top = ends[:2]
    stop = front - 0.26 * length
    stop_top = stop - (0.62 if looks.kind != "estate" else 0.5)
    cabin = frustum((start, stop), (start_top, stop_top), (width * 0.93, width * 0.72), (belt, height))
    roof = looks.second if looks.top == "other colour" else color
    post = 0.5 if looks.kind != "estate" else 0.36
    windows = [("sides", box(0.06, 0.08, post - 0.02, 0.86), glass), ("sides", box(post + 0.03, 0.08, 0.95, 0.86), glass)]
    if looks.kind == "estate":
        windows[0] = ("sides", box(0.3, 0.08, 0.6, 0.86), glass)
        windows[1] = ("sides", box(0.64, 0.08, 0.95, 0.86), glass)
        windows.append(("sides", box(0.05, 0.1, 0.26, 0.84), glass))
    windows += [("front", box(0.05, 0.06, 0.95, 0.94), glass), ("rear", box(0.08, 0.12, 0.92, 0.9), glass)]
    shape.part(cabin, {"top": roof, "else": color}, windows + top_decals(looks))
    roof_load(shape, looks, (start_top, stop_top), width * 0.72, height)
    return shape.finish()


def van(looks):
    length, width, height = looks.size
    rear, front = -length / 2, length / 2
    color, glass = looks.color, glass_of(looks)
    shape = Shape()
    shape.part(frustum((rear + 0.1, front - 0.1), (rear + 0.1, front - 0.1), (width * 0.92, width * 0.92), (0.18, 0.42)),
               (22, 22, 24))
    lower = frustum((rear, front), (rear, front - 0.12), (width, width), (0.36, height * 0.52))
    decals = wheels(lower["left"], (0.2 * length, 0.8 * length), 0.36, 0.36)
    shape.part(lower, color, side_decals(looks, lower["left"], 0.15, 0.9) + decals + front_decals(looks))
    upper = frustum((rear, front - 0.12), (rear + 0.06, front - 1.05), (width, width * 0.88), (height * 0.52, height))
    windows = [("sides", box(0.72, 0.1, 0.98, 0.78), glass), ("front", box(0.05, 0.12, 0.95, 0.86), glass),
               ("rear", box(0.1, 0.2, 0.45, 0.75), glass), ("rear", box(0.55, 0.2, 0.9, 0.75), glass)]
    if looks.glass > 0.5:  # for people, not for goods
        windows += [("sides", box(0.06, 0.15, 0.34, 0.75), glass), ("sides", box(0.38, 0.15, 0.67, 0.75), glass)]
    else:
        windows += side_decals(looks, upper["left"], 0.15, 0.8)[:1] if looks.side in ("panel", "disc") else []
    roof = looks.second if looks.top == "other colour" else color
    shape.part(upper, {"top": roof, "else": color}, windows + top_decals(looks))
    roof_load(shape, looks, (rear + 0.1, front - 1.1), width * 0.88, height)
    return shape.finish()


def truck(looks):
    length, width, height = looks.size
    rear, front = -length / 2, length / 2
    glass = glass_of(looks)
    load = looks.second if looks.top in ("other colour", "box", "sign") else (222, 222, 220)
    shape = Shape()
    shape.part(frustum((rear + 0.05, front - 0.1), (rear + 0.05, front - 0.1), (width * 0.8, width * 0.8), (0.35, 0.95)),
               (32, 32, 35))
    cargo_end = front - 1.95
    cargo = frustum((rear, cargo_end), (rear, cargo_end), (width, width), (0.85, height))
    decals = wheels(cargo["left"], (0.9, 1.9), 0.48, 0.85) + side_decals(looks, cargo["left"], 0.2, 0.85)
    lights = [("rear", box(0.02, 0.0, 0.14, 0.07), (168, 18, 20)), ("rear", box(0.86, 0.0, 0.98, 0.07), (168, 18, 20)),
              ("rear", box(0.49, 0.05, 0.51, 0.95), (120, 120, 120))]
    cabin_height = height * 0.82
    cabin = frustum((front - 1.8, front), (front - 1.75, front - 0.3), (width * 0.96, width * 0.9), (0.5, cabin_height))
    fronts = [("sides", box(0.3, 0.52, 0.86, 0.88), glass), ("front", box(0.05, 0.5, 0.95, 0.88), glass),
              ("front", box(0.03, 0.12, 0.18, 0.24), (238, 236, 220)), ("front", box(0.82, 0.12, 0.97, 0.24), (238, 236, 220)),
              ("front", box(0.25, 0.1, 0.75, 0.34), (30, 30, 33))]
    fronts += wheels(cabin["left"], (0.95,), 0.48, 0.5)
    shape.part(cargo, load, decals + lights + (top_decals(looks)))
    shape.part(cabin, looks.color, fronts)
    shape.swap = (1, 2, cargo_end)  # these two parts change their order when the camera stands behind this plane
    return shape.finish()


def bus(looks):
    length, width, height = looks.size
    rear, front = -length / 2, length / 2
    glass = glass_of(looks)
    shape = Shape()
    shape.part(frustum((rear + 0.1, front - 0.1), (rear + 0.1, front - 0.1), (width * 0.9, width * 0.9), (0.2, 0.45)),
               (22, 22, 24))
    lower = frustum((rear, front), (rear, front), (width, width), (0.35, 1.25))
    decals = side_decals(looks, lower["left"], 0.1, 0.95) + wheels(lower["left"], (2.6, length - 2.4), 0.48, 0.35)
    shape.part(lower, looks.color, decals + front_decals(looks))
    upper = frustum((rear, front), (rear + 0.05, front - 0.15), (width, width * 0.95), (1.25, height))
    windows = [("sides", box(u, 0.1, u + 0.1, 0.68), glass) for u in np.linspace(0.03, 0.75, 7)]
    windows += [("sides", box(0.88, 0.05, 0.98, 0.72), glass), ("front", box(0.04, 0.05, 0.96, 0.72), glass),
                ("front", box(0.2, 0.78, 0.8, 0.94), (232, 158, 42)), ("rear", box(0.12, 0.25, 0.88, 0.72), glass)]
    roof = looks.second if looks.top == "other colour" else looks.color
    shape.part(upper, {"top": roof, "else": looks.color}, windows + top_decals(looks))
    if looks.top in ("box", "sign", "rails"):
        shape.part(frustum((rear + 1.0, rear + 3.2), (rear + 1.1, rear + 3.1), (1.5, 1.4), (height, height + 0.25)),
                   looks.second)
    return shape.finish()


def shape_of(looks):
    return {"van": van, "truck": truck, "bus": bus}.get(looks.kind, car)(looks)
