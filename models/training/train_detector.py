"""Trains the vehicle detectors.

    python train_detector.py --work WORK [--only huge]

WORK/city/train and WORK/city/validation are cities by generate_city.py. A network without anchors: each place of a grid of
8 pixels says whether a vehicle's middle is there (a peak of a map, as CenterNet has it, Zhou, Wang, Krähenbühl, 2019),
where its box ends and of which class it is. Only the highest place of a peak keeps its score.

Training sees parts of pictures; the networks are convolutions only.
"""

import dataclasses

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import city_data
import detection_metric
import training_run
from train_features import Residual, convolution

FOLDER = training_run.HERE.parent / "aicity"
STRIDE = 8
BATCH = 32
EPOCHS = 40
WHOLE = (480, 288)
MEAN, DEVIATION = 110.0, 60.0  # of bytes
LEAST_SIDE = 3.5  # pixels of the scaled picture: smaller vehicles are neither searched nor forbidden


@dataclasses.dataclass
class Size:
    """Size of the picture, of its parts in training; channels at strides 2, 4, 8, 16 and residual blocks at 4, 8, 16."""

    picture: tuple
    part: tuple
    widths: tuple
    blocks: tuple
    step: float = 3e-3


SIZES = {
    "tiny": Size((192, 112), (176, 112), (8, 12, 20, 28), (0, 0, 0)),
    "small": Size((240, 144), (192, 112), (8, 16, 24, 40), (0, 0, 1)),
    "medium": Size((320, 192), (224, 144), (10, 20, 40, 64), (0, 1, 1)),
    "large": Size((400, 240), (256, 160), (14, 28, 56, 80), (0, 1, 2)),
    "huge": Size((480, 288), (288, 176), (16, 32, 72, 104), (0, 2, 2)),
}


class Detector(nn.Module):
    """Bytes [batch, 3, h, w] to [batch, places, 6]: middle, size (fractions of the picture), score, class."""

    def __init__(self, size):
        super().__init__()
        two, four, eight, sixteen = size.widths
        self.fine = nn.Sequential(
            convolution(3, two, 3, 2), convolution(two, four, 3, 2), *(Residual(four) for _ in range(size.blocks[0])),
            convolution(four, eight, 3, 2), *(Residual(eight) for _ in range(size.blocks[1])))
        self.coarse = nn.Sequential(convolution(eight, sixteen, 3, 2), *(Residual(sixteen) for _ in range(size.blocks[2])),
                                    convolution(sixteen, sixteen, 3), convolution(sixteen, eight, 1))
        self.join = convolution(eight, eight, 3)
        self.head = nn.Conv2d(eight, 5 + len(city_data.CLASSES), 1)
        nn.init.zeros_(self.head.bias)
        with torch.no_grad():
            self.head.bias[0] = -4.0  # most places have no middle
        width, height = size.picture
        x, y = np.meshgrid(np.arange(width // STRIDE) + 0.5, np.arange(height // STRIDE) + 0.5)
        grid = np.stack([x, y], axis=-1).reshape(1, -1, 2) * STRIDE / np.array([width, height])
        self.register_buffer("grid", torch.tensor(grid, dtype=torch.float32))
        scale = np.array([STRIDE / width, STRIDE / height]).reshape(1, 1, 2)
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32))

    def raw(self, bytes_):
        """[batch, 9, h / 8, w / 8]: map, middle, logarithm of the size, classes; lengths in places."""
        fine = self.fine((bytes_.float() - MEAN) / DEVIATION)
        return self.head(self.join(fine + F.interpolate(self.coarse(fine), scale_factor=2, mode="nearest")))

    def forward(self, bytes_):
        raw = self.raw(bytes_)
        score = torch.sigmoid(raw[:, :1])
        score = score * (score >= F.max_pool2d(score, 3, 1, 1)).float()
        flat = lambda part: part.flatten(2).transpose(1, 2)
        middle = self.grid + flat(raw[:, 1:3]) * self.scale
        size = torch.exp(torch.clamp(flat(raw[:, 3:5]), -3.0, 5.0)) * self.scale
        kind = flat(raw[:, 5:]).argmax(2, keepdim=True).float()
        return torch.cat([middle, size, flat(score), kind], dim=2)


def draw_targets(boxes, part):
    """The map [h, w], its weights, and of places near a middle: (row, column, x, y, width, height, class, weight) in places.

    `boxes`: [n, 6] of left, top, width, height, class, flag in pixels of the part.
    """
    columns, rows = part[0] // STRIDE, part[1] // STRIDE
    heat, weight = np.zeros((rows, columns), np.float32), np.ones((rows, columns), np.float32)
    ys, xs = np.mgrid[0:rows, 0:columns] + 0.5
    places = []
    for left, top, width, height, kind, flag in boxes:
        l, t = max(left, 0) / STRIDE, max(top, 0) / STRIDE
        r, b = min(left + width, part[0]) / STRIDE, min(top + height, part[1]) / STRIDE
        if r <= l or b <= t:
            continue
        x, y, w, h = (l + r) / 2, (t + b) / 2, r - l, b - t
        shown = w * h * STRIDE**2 / (width * height)
        if not flag or shown < 0.3 or min(w, h) * STRIDE < LEAST_SIDE:
            weight[max(0, int(t - 0.5)):int(b + 1.5), max(0, int(l - 0.5)):int(r + 1.5)] = 0
            continue
        sx, sy = max(0.45, w / 7), max(0.45, h / 7)
        column, row = min(int(x), columns - 1), min(int(y), rows - 1)
        bump = np.exp(-((xs - x) ** 2) / (2 * sx**2) - (ys - y) ** 2 / (2 * sy**2)).astype(np.float32)
        bump[row, column] = 1
        heat = np.maximum(heat, bump)
        for i, j in np.argwhere(bump > 0.6):
            places.append((i, j, x - j - 0.5, y - i - 0.5, w, h, kind, bump[i, j]))
    weight[heat == 1] = 1
    return heat, weight, places


def example(clip, index, size, rng):
    """A part of a frame [3, h, w] in bytes, and its targets."""
    frame, boxes = clip.frames[index], clip.boxes[index]
    scale = size.picture[0] / WHOLE[0] * rng.uniform(0.8, 1.35)
    width, height = size.part[0] / scale, size.part[1] / scale
    shrink = min(1.0, WHOLE[0] / width, WHOLE[1] / height)
    width, height = width * shrink, height * shrink
    # Around a vehicle more often than not.
    if len(boxes) and rng.random() < 0.75:
        chosen = boxes[rng.integers(len(boxes))]
        x = chosen[0] + chosen[2] / 2 + rng.uniform(-0.5, 0.5) * width
        y = chosen[1] + chosen[3] / 2 + rng.uniform(-0.5, 0.5) * height
    else:
        x, y = rng.uniform(0, WHOLE[0]), rng.uniform(0, WHOLE[1])
    left = max(min(x - width / 2, WHOLE[0] - width), 0.0)
    top = max(min(y - height / 2, WHOLE[1] - height), 0.0)
    pixels = city_data.part(frame, (left, top, min(left + width, WHOLE[0]), min(top + height, WHOLE[1])), size.part)
    zoom = size.part[0] / width
    moved = boxes[:, :6].copy()
    moved[:, 0], moved[:, 1] = (boxes[:, 0] - left) * zoom, (boxes[:, 1] - top) * zoom
    moved[:, 2:4] *= zoom
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
        moved[:, 0] = size.part[0] - moved[:, 0] - moved[:, 2]
    return pixels.transpose(2, 0, 1), draw_targets(moved, size.part)


def overlap_loss(predicted, wanted):
    """1 - generalised intersection over union; both [n, 4] of middle and size."""
    low = lambda b: b[:, :2] - b[:, 2:] / 2
    high = lambda b: b[:, :2] + b[:, 2:] / 2
    area = lambda b: b[:, 2] * b[:, 3]
    inner = (torch.minimum(high(predicted), high(wanted)) - torch.maximum(low(predicted), low(wanted))).clamp(min=0).prod(1)
    outer = (torch.maximum(high(predicted), high(wanted)) - torch.minimum(low(predicted), low(wanted))).prod(1)
    union = area(predicted) + area(wanted) - inner
    return 1 - inner / union + (outer - union) / outer


def batch_of(frames, size):
    """What gives a batch: pixels, maps, weights, and [places, 9] of the number in the batch and what draw_targets says."""
    def batch(chosen, rng):
        examples = [example(*frames[i], size, rng) for i in chosen]
        rows = [(n, *place) for n, (_, targets) in enumerate(examples) for place in targets[2]]
        parts = [np.stack([e[0] for e in examples]), np.stack([e[1][0] for e in examples]),
                 np.stack([e[1][1] for e in examples]), np.array(rows, np.float32).reshape(-1, 9)]
        return [torch.from_numpy(np.ascontiguousarray(part)) for part in parts]
    return batch


def loss_of(raw, heat, weight, table):
    logits = raw[:, 0]
    p = torch.sigmoid(logits)
    peak = (heat == 1).float()
    found = peak * (1 - p) ** 2 * F.logsigmoid(logits)
    empty = (1 - peak) * weight * (1 - heat) ** 4 * p**2 * F.logsigmoid(-logits)
    total = -(found + empty).sum() / peak.sum().clamp(min=1.0)
    if not len(table):
        return total
    n, i, j = table[:, :3].long().T
    at = raw[n, :, i, j]
    predicted = torch.cat([at[:, 1:3], torch.exp(torch.clamp(at[:, 3:5], -3.0, 5.0))], dim=1)
    share = table[:, 8] / table[:, 8].sum()
    total = total + 2 * (overlap_loss(predicted, table[:, 3:7]) * share).sum()
    return total + 0.4 * (F.cross_entropy(at[:, 5:], table[:, 7].long(), reduction="none") * share).sum()


def detections(model, size, clips, every):
    """(frames' boxes in pixels with score and class, truth) of every so-maniest frame."""
    model.eval()
    found, truth = [], []
    for clip in clips:
        chosen = range(0, len(clip.frames), every)
        for start in range(0, len(chosen), 32):
            part = chosen[start:start + 32]
            pixels = np.stack([city_data.whole(clip.frames[i], size.picture) for i in part]).transpose(0, 3, 1, 2)
            with torch.no_grad():
                values = model(torch.from_numpy(np.ascontiguousarray(pixels)).to(model.grid.device)).cpu().numpy()
            for index, rows in zip(part, values):
                found.append(detection_metric.kept(rows, WHOLE))
                truth.append(clip.boxes[index])
    return found, truth


def train(name, args, train_clips, tune_clips):
    size = SIZES[name]
    epochs = min(args.epochs or EPOCHS, EPOCHS)
    frames = [(clip, index) for clip in train_clips for index in range(len(clip.frames))]
    batches = training_run.Batches(batch_of(frames, size), len(frames), BATCH, args.seed)
    torch.manual_seed(args.seed)
    model = Detector(size).to(args.device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.step, weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, size.step, total_steps=epochs * batches.steps, pct_start=0.15)
    progress = training_run.Progress(args.work / "checkpoints" / f"vehicles-{name}.pt", model, optimizer, scheduler)
    for epoch, step, (pixels, *targets) in batches.prepared(progress.epoch, epochs, args):
        if step == 0:
            progress.seed(args.seed)
            model.train()
            total = torch.zeros((), device=args.device)
        pixels = city_data.recoloured(pixels).contiguous(memory_format=torch.channels_last)
        loss = loss_of(model.raw(pixels), *targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        scheduler.step()
        total += loss.detach()
        training_run.pulse(f"vehicles-{name}", epoch, step, batches.steps)
        if step + 1 < batches.steps:
            continue
        progress.done_epoch()
        last = progress.epoch == epochs
        if last or progress.epoch % 5 == 0:
            quality = detection_metric.average_precision(*detections(model, size, tune_clips, 10 if last else 30))
            loss = total.item() / batches.steps
            training_run.log(f"vehicles-{name}: epoch {progress.epoch}/{epochs} loss {loss:.3f} AP {quality:.3f}")
    export(name, model, args, tune_clips)


def export(name, model, args, tune_clips):
    size, file = SIZES[name], f"vehicles-{name}"
    model = model.to("cpu", memory_format=torch.contiguous_format)
    found, truth = detections(model, size, tune_clips, 5)
    value, interval = detection_metric.average_precision_with_interval(found, truth)
    threshold, f1 = detection_metric.best_threshold(found, truth)
    training_run.log(f"{file}: AP {value:.4f} {interval}, best threshold {threshold:.2f} (F1 {f1:.3f})")
    width, height = size.picture
    facts = training_run.export(model, (torch.zeros(1, 3, height, width, dtype=torch.uint8),), file, ["image"], ["boxes"],
                                folder=FOLDER)
    training_run.write_manifest(
        file, f"Finds cars, vans, trucks and buses in a picture, seen at {width}x{height} ({name} network).",
        facts, "train_detector.py", args.seed,
        inputs=[{
            "name": "image", "column": "image", "type": "image", "dtype": "uint8", "shape": ["batch", 3, height, width],
            "preprocess": [{"resize": {"width": width, "height": height}}],
        }],
        outputs=[{
            "name": "boxes", "column": "boxes", "type": "tensor", "dtype": "float32",
            "shape": ["batch", width * height // STRIDE**2, 6],
            # A tracker can use boxes that are a little less sure than the best single detections.
            "postprocess": [{"decode_boxes": {"threshold": round(threshold - 0.1, 2), "iou": 0.5, "clip_first": True}}],
        }],
        metric=training_run.measured("average_precision_50", value, interval, len(found)),
        note=f"Rows are middle x, y, width, height (fractions of the picture), score, class (car, van, truck, bus); the F1 of "
             f"single detections on the validation scenes is highest at a score of {threshold:.2f}.",
        folder=FOLDER)


def main():
    args = training_run.arguments("Trains the vehicle detectors.", 21, SIZES, batches=True)
    train_clips = [] if args.export else city_data.clips_of(args.work / "city" / "train")
    tune_clips = city_data.clips_of(args.work / "city" / "validation")
    for name in SIZES:
        if args.only not in (None, name):
            continue
        if args.export:
            model = Detector(SIZES[name])
            model.load_state_dict(training_run.learned(args.work / "checkpoints" / f"vehicles-{name}.pt"))
            export(name, model, args, tune_clips)
        else:
            train(name, args, train_clips, tune_clips)


if __name__ == "__main__":
    main()
