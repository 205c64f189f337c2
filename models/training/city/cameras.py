"""A camera: where it hangs, where it looks, its lens, and what its sensor makes of the light."""

import dataclasses
import math

import numpy as np

WIDTH, HEIGHT = 480, 288


@dataclasses.dataclass
class Camera:
    name: str
    position: np.ndarray  # [3]
    yaw: float  # from the east, counterclockwise
    pitch: float  # below the horizon
    roll: float
    focal: float  # pixels at WIDTH
    distortion: float  # share by which a point at the side of the picture moves inwards
    exposure: float = 1.0
    tint: tuple = (1.0, 1.0, 1.0)
    gamma: float = 1.0
    haze: float = 0.0  # share of the light that is lost in 100 m
    noise: float = 4.0  # standard deviation of a pixel, of 255
    blur: float = 0.0  # pixels
    vignette: float = 0.1

    def __post_init__(self):
        cy, sy, cp, sp = math.cos(self.yaw), math.sin(self.yaw), math.cos(self.pitch), math.sin(self.pitch)
        forward = np.array([cy * cp, sy * cp, -sp])
        right = np.array([sy, -cy, 0.0])
        down = np.cross(forward, right)
        cr, sr = math.cos(self.roll), math.sin(self.roll)
        self.axes = np.stack([cr * right + sr * down, -sr * right + cr * down, forward])

    def _undistorted(self, x, y):
        """From a place in the picture, in half widths, to the place where a lens without distortion has it."""
        factor = 1 + self.distortion * (x * x + y * y)
        return x * factor, y * factor

    def project(self, points, scale=1.0):
        """[n, 3] to pixels [n, 2] of a picture `scale` times as large, and the distance along the optical axis [n]."""
        local = (points - self.position) @ self.axes.T
        depth = local[:, 2]
        safe = np.where(depth > 0.3, depth, 0.3)
        x, y = local[:, 0] / safe * self.focal / (WIDTH / 2), local[:, 1] / safe * self.focal / (WIDTH / 2)
        u, v = x, y
        for _ in range(4):  # the distortion backwards
            factor = 1 + self.distortion * np.minimum(u * u + v * v, 2.5)
            u, v = x / factor, y / factor
        pixels = np.stack([u * WIDTH / 2 + WIDTH / 2, v * WIDTH / 2 + HEIGHT / 2], axis=1)
        return pixels * scale, depth

    def rays(self, scale):
        """Directions [h, w, 3] of length 1 of the pixels of a picture `scale` times as large."""
        xs = ((np.arange(WIDTH * scale) + 0.5) / scale - WIDTH / 2) / (WIDTH / 2)
        ys = ((np.arange(HEIGHT * scale) + 0.5) / scale - HEIGHT / 2) / (WIDTH / 2)
        x, y = self._undistorted(*np.meshgrid(xs, ys))
        k = WIDTH / 2 / self.focal
        local = np.stack([x * k, y * k, np.ones_like(x)], axis=2)
        local /= np.linalg.norm(local, axis=2, keepdims=True)
        return (local @ self.axes).astype(np.float32)


def hang(rng, name, roads, node, toward, across):
    """A camera on a pole at a corner of a junction.

    It looks along the street that leads from the junction `toward` a direction; `across` it hangs behind the junction
    and sees it, else in front and sees the street alone.
    """
    middle = roads.place(node)
    way = np.array(toward, float)
    side = np.array([toward[1], -toward[0]], float) * (1 if rng.random() < 0.5 else -1)
    back = rng.uniform(10.0, 13.0)
    start = middle + side * rng.uniform(5.0, 7.0) + (-way * back if across else way * rng.uniform(6.0, 8.0))
    height = rng.uniform(5.4, 8.2)
    target = middle + way * (rng.uniform(12, 20) if across else rng.uniform(26, 34)) - side * rng.uniform(-1.0, 2.5)
    away = target - start
    distance = float(np.hypot(*away))
    dark = rng.random() < 0.3
    tint = np.array([1.0, 1.0, 1.0]) + rng.uniform(-0.09, 0.09) * np.array([1.0, 0.0, -1.0])
    return Camera(
        name=name, position=np.array([start[0], start[1], height]), yaw=math.atan2(away[1], away[0]),
        pitch=math.atan2(height - 0.5, distance), roll=rng.uniform(-0.02, 0.02), focal=rng.uniform(330, 430),
        distortion=rng.uniform(0.0, 0.12), exposure=rng.uniform(0.6, 0.78) if dark else rng.uniform(0.9, 1.25),
        tint=tuple(tint * (1 + rng.uniform(-0.02, 0.02, 3))), gamma=rng.uniform(0.85, 1.15),
        haze=rng.uniform(0.0, 0.3), noise=rng.uniform(6, 11) if dark else rng.uniform(2, 6),
        blur=rng.uniform(0.0, 0.5), vignette=rng.uniform(0.05, 0.3))
