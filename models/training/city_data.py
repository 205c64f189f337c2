"""What is read of rendered cities: frames, boxes, vehicles cut out of frames."""

import csv
import dataclasses

import numpy as np
import torch
from PIL import Image

import training_run
from city import clips

CLASSES = ["car", "van", "truck", "bus"]


@dataclasses.dataclass
class Clip:
    """A camera's clip. Boxes of a frame: [n, 7] of left, top, width, height, class, flag, identity."""

    city: str
    camera: str
    frames: np.ndarray  # [n, height, width, 3] bytes
    boxes: list


def clips_of(folder, keep=True):
    """The clips of all cities in a folder; frames are decoded once and then kept beside them, unless `keep` is false."""
    found = []
    for truth in sorted(folder.glob("city-*/camera-*.txt")) or sorted(folder.glob("camera-*.txt")):
        kept = truth.with_suffix(".npy")
        if not keep:
            frames = clips.read(truth.with_suffix(".mp4"))
        else:
            if not kept.exists():
                training_run.save_array(kept, clips.read(truth.with_suffix(".mp4")))
            frames = np.load(kept, mmap_mode="r")
        boxes = [[] for _ in frames]
        with open(truth, newline="") as source:
            for row in csv.reader(source):
                left, top, width, height = map(float, row[2:6])
                boxes[int(row[0]) - 1].append([left, top, width, height, int(row[7]) - 1, int(row[6]), int(row[1])])
        boxes = [np.array(rows, np.float32).reshape(-1, 7) for rows in boxes]
        found.append(Clip(truth.parent.name, truth.stem, frames, boxes))
    if not found:
        raise SystemExit(f"{folder} has no city: generate_city.py writes them")
    return found


def part(frame, box, size):
    """The part of a frame in a box (left, top, right, bottom), scaled as the engine does."""
    return np.asarray(Image.fromarray(frame).resize(size, Image.BILINEAR, box=tuple(float(v) for v in box)))


def whole(frame, size):
    image = Image.fromarray(frame)
    return np.asarray(image if image.size == size else image.resize(size, Image.BILINEAR))


def crop(frame, box, side):
    """What a box (left, top, width, height) shows, stretched to a square."""
    return np.asarray(Image.fromarray(np.ascontiguousarray(cut(frame, box))).resize((side, side), Image.BILINEAR))


def cut(frame, box):
    """What a box shows: whole pixels inside the frame, at least one."""
    height, width = frame.shape[:2]
    left, top = min(max(0, round(float(box[0]))), width - 1), min(max(0, round(float(box[1]))), height - 1)
    right = min(width, max(left + 1, round(float(box[0] + box[2]))))
    bottom = min(height, max(top + 1, round(float(box[1] + box[3]))))
    return frame[top:bottom, left:right]


def recoloured(pixels, strength=1.0):
    """Each picture of a batch of bytes [n, 3, h, w] with another exposure, contrast, tint and noise; as numbers."""
    draw = lambda least, most, channels=1: torch.empty(len(pixels), channels, 1, 1, device=pixels.device).uniform_(least, most)
    gain = draw(1 - 0.3 * strength, 1 + 0.3 * strength) * draw(1 - 0.07 * strength, 1 + 0.07 * strength, 3)
    values = pixels.float()
    middle = values.mean((1, 2, 3), keepdim=True)
    values = ((values - middle) * draw(1 - 0.2 * strength, 1 + 0.2 * strength) + middle) * gain
    noise = draw(1, 8) * (draw(0, 1) < 0.4)
    return (values + torch.randn_like(values) * noise).clamp(0, 255).floor()
