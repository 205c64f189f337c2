"""Frames of a camera and the truth about the vehicles in them."""

import dataclasses

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from city import cameras, scenery as still

SCALE = 2  # pictures are drawn so many times as large and scaled down
FARTHEST = 90.0  # metres


@dataclasses.dataclass
class Seen:
    """One vehicle in a frame. The box encloses what is visible: left, top, width, height in pixels."""

    number: int
    box: tuple
    visible: float  # share of the vehicle's pixels in the picture that nothing hides
    kind: int  # index of cameras' class


class View:
    """A camera over a scenery, ready to make frames."""

    def __init__(self, scenery, camera):
        self.scenery, self.camera = scenery, camera
        self.picture, self.upright = still.draw(scenery, camera, SCALE)
        self.picture = np.clip(self.picture, 0, 255).astype(np.uint8)
        self.height, self.width = self.upright.shape
        ys, xs = np.mgrid[-1:1:cameras.HEIGHT * 1j, -1:1:cameras.WIDTH * 1j]
        self.vignette = (1 - camera.vignette * (xs**2 + ys**2) / 2).astype(np.float32)[:, :, None]

    def frame(self, vehicles, rng):
        """The frame [h, w, 3] in bytes and what is seen. `vehicles`: (number, looks, shape, middle, heading)."""
        present = []
        for vehicle in vehicles:
            middle = vehicle[3]
            distance = float(np.hypot(middle[0] - self.camera.position[0], middle[1] - self.camera.position[1]))
            if distance < FARTHEST:
                present.append((distance, vehicle))
        present.sort(key=lambda item: -item[0])
        image = Image.fromarray(self.picture)
        self._shadows(image, [vehicle for _, vehicle in present])
        picture = np.asarray(image).copy()
        owner = np.zeros((self.height, self.width), np.int16)
        drawn = []
        for distance, vehicle in present:
            painted = self._paint(picture, vehicle, distance)
            if painted is not None:
                area, mask, hidden = painted
                owner[area][mask] = len(drawn) + 1
                drawn.append((vehicle, area, int(mask.sum() + hidden)))
        return self._sensor(picture, rng), self._seen(owner, drawn)

    def _polygons(self, vehicle):
        """Pixels of a vehicle's polygons, their colours, and which of them face the camera; nothing if it is not seen."""
        _, looks, shape, middle, heading = vehicle
        c, s = np.cos(heading), np.sin(heading)
        turn = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
        shift = np.array([middle[0], middle[1], 0])
        pixels, depth = self.camera.project(shape.points @ turn + shift, SCALE)
        if depth.min() < 1.5:
            return None
        if pixels[:, 0].max() < 0 or pixels[:, 0].min() > self.width or pixels[:, 1].max() < 0 \
                or pixels[:, 1].min() > self.height:
            return None
        normals = shape.normals @ turn
        facing = ((self.camera.position - (shape.centers @ turn + shift)) * normals).sum(axis=1) > 0
        lit = 0.0 if self.scenery.in_shadow(np.array([middle[0], middle[1], 0.9])) else 1.0
        light = still.ambient(self.scenery) * (0.85 + 0.25 * normals[:, 2]) + lit * still.sun_part(self.scenery) * np.clip(
            normals @ self.scenery.sun, 0, 1)
        colors = shape.colors * (1 - looks.dirt * 0.4) + np.array([96, 90, 80]) * looks.dirt * 0.4
        colors = colors * light[shape.hosts][:, None] + 10 * np.clip(normals[shape.hosts][:, 2:3], 0, 1)
        return pixels, colors, facing

    def _paint(self, picture, vehicle, distance):
        polygons = self._polygons(vehicle)
        if polygons is None:
            return None
        pixels, colors, facing = polygons
        shape = vehicle[2]
        left, top = np.maximum(np.floor(pixels.min(axis=0)).astype(int) - 1, 0)
        right = min(int(np.ceil(pixels[:, 0].max())) + 2, self.width)
        bottom = min(int(np.ceil(pixels[:, 1].max())) + 2, self.height)
        if right - left < 3 or bottom - top < 3:
            return None
        area = (slice(top, bottom), slice(left, right))
        patch = Image.fromarray(picture[area])
        mask = Image.new("L", patch.size, 0)
        paint, cover = ImageDraw.Draw(patch), ImageDraw.Draw(mask)
        haze = 1 - np.exp(-distance / 100 * self.camera.haze)
        colors = colors + (still.SKY * 0.95 - colors) * haze
        colors = np.clip(colors, 0, 255).astype(int)
        pixels = pixels - np.array([left, top])
        order = range(len(shape.counts))
        swap = getattr(shape, "swap", None)
        if swap is not None:
            order = self._swapped(vehicle, swap)
        for index in order:
            host = shape.hosts[index]
            if not facing[host]:
                continue
            end = shape.ends[index]
            points = [tuple(p) for p in pixels[end - shape.counts[index]:end]]
            paint.polygon(points, fill=tuple(colors[index]))
            cover.polygon(points, fill=255)
        silhouette = np.asarray(mask) > 0
        visible = silhouette & (self.upright[area] > distance)
        # Vehicles farther away are painted first, so what is painted here hides them.
        picture[area][visible] = np.asarray(patch)[visible]
        return area, visible, int(silhouette.sum() - visible.sum())

    def _swapped(self, vehicle, swap):
        """The order of polygons when one part must be painted before an earlier one: which, depends on the camera."""
        first, second, plane = swap
        _, _, shape, middle, heading = vehicle
        way = np.array([np.cos(heading), np.sin(heading)])
        ahead = (self.camera.position[:2] - middle) @ way > plane
        parts = shape.hosts // 5  # a part has five faces
        rank = np.where(parts == first, 1, np.where(parts == second, 2, np.where(parts < first, 0, 3)))
        if not ahead:
            rank = np.where(parts == first, 2, np.where(parts == second, 1, rank))
        return np.argsort(rank, kind="stable")

    def _shadows(self, image, vehicles):
        """Below and beside vehicles, soft at the border."""
        mask = Image.new("L", image.size, 0)
        draw = ImageDraw.Draw(mask)
        sun = self.scenery.sun
        for _, looks, _, middle, heading in vehicles:
            length, width, height = looks.size
            c, s = np.cos(heading), np.sin(heading)
            corners = np.array([[x * length / 2, y * width / 2] for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))])
            base = corners @ np.array([[c, s], [-s, c]]) + middle
            shapes = [(base, 120)]
            if not self.scenery.in_shadow(np.array([middle[0], middle[1], 0.9])):
                cast = base - sun[:2] / sun[2] * height * 0.85
                shapes.append((still.hull(np.concatenate([base, cast])), int(60 + 110 * self.scenery.sunny)))
            for outline, strength in sorted(shapes, key=lambda item: item[1]):
                points = np.concatenate([outline, np.zeros((len(outline), 1))], axis=1)
                pixels, depth = self.camera.project(points, SCALE)
                if depth.min() > 1.5:
                    draw.polygon([tuple(p) for p in pixels], fill=strength)
        mask = mask.filter(ImageFilter.BoxBlur(2))
        box = mask.getbbox()
        if box:
            area = (slice(box[1], box[3]), slice(box[0], box[2]))
            dark = np.asarray(mask)[area].astype(np.float32) / 255 * (self.upright[area] > 1e5)
            part = np.asarray(image)[area] * (1 - 0.75 * dark[:, :, None])
            image.paste(Image.fromarray(part.astype(np.uint8)), box[:2])

    def _sensor(self, picture, rng):
        """Lens and sensor: blur, vignette, exposure, tint, gamma, noise."""
        camera = self.camera
        image = Image.fromarray(picture).reduce(SCALE)
        if camera.blur > 0.05:
            image = image.filter(ImageFilter.GaussianBlur(camera.blur))
        values = np.asarray(image, np.float32) * self.vignette * (np.array(camera.tint, np.float32) * camera.exposure)
        if camera.gamma != 1:
            values = 255 * np.clip(values / 255, 0, 1) ** np.float32(camera.gamma)
        brightness = 0.7 + 0.6 * values[:, :, 1:2] / 255  # more light, more noise
        values += rng.standard_normal(values.shape, dtype=np.float32) * np.float32(camera.noise) * brightness
        return np.clip(values, 0, 255).astype(np.uint8)

    def _seen(self, owner, drawn):
        found = []
        for index, (vehicle, area, whole) in enumerate(drawn):
            mine = owner[area] == index + 1
            count = int(mine.sum())
            if count < 12 * SCALE:
                continue
            columns, rows = np.nonzero(mine.any(axis=0))[0], np.nonzero(mine.any(axis=1))[0]
            left, top = (area[1].start + columns[0]) / SCALE, (area[0].start + rows[0]) / SCALE
            right, bottom = (area[1].start + columns[-1] + 1) / SCALE, (area[0].start + rows[-1] + 1) / SCALE
            found.append(Seen(vehicle[0], (left, top, right - left, bottom - top), count / whole, vehicle[1].kind))
        return found
