"""Trains the appearance embeddings: the same vehicle is near to itself, whichever camera sees it.

    python train_appearance.py --work WORK [--only huge]

Learns to tell the vehicles of WORK/city/looks apart with a classifier over angles that is thrown away afterwards
(additive angular margin, Deng et al., 2019). Rank 1 and mean average precision are those of vehicles of
WORK/city/validation that another camera has to find again.
"""

import dataclasses

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import city_data
import training_run
from train_detector import DEVIATION, FOLDER, MEAN
from train_features import Residual, convolution

WIDTH = 64
BATCH = 128
EPOCHS = 14
LEAST_SIDE = 12
SCALE, MARGIN = 20.0, 0.25


@dataclasses.dataclass
class Size:
    """Side of the crop; channels after each halving and residual blocks there."""

    side: int
    widths: tuple
    blocks: tuple
    step: float = 3e-3


SIZES = {
    "tiny": Size(32, (6, 10, 16), (0, 0, 0)),
    "small": Size(32, (12, 20, 32), (0, 0, 0)),
    "medium": Size(48, (16, 28, 48), (0, 0, 1)),
    "large": Size(64, (16, 32, 64, 96), (0, 0, 1, 0)),
    "huge": Size(64, (24, 48, 72, 112), (0, 1, 1, 1)),
}


class Appearance(nn.Module):
    """Bytes [batch, 3, side, side] to [batch, 64] of length 1."""

    def __init__(self, size):
        super().__init__()
        layers, inputs = [], 3
        for width, blocks in zip(size.widths, size.blocks):
            layers += [convolution(inputs, width, 3, 2)] + [Residual(width) for _ in range(blocks)]
            inputs = width
        self.body = nn.Sequential(*layers)
        # Which part of the vehicle has which look counts, so the cells of a grid of 4x4 are told apart.
        self.cell = size.side // 2 ** len(size.widths) // 4 or 1
        self.reduce = convolution(inputs, max(16, inputs // 4), 1)
        side = size.side // 2 ** len(size.widths) // self.cell
        self.head = nn.Linear(max(16, inputs // 4) * side * side + inputs, WIDTH, bias=False)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, bytes_):
        x = self.body((bytes_.float() - MEAN) / DEVIATION)
        cells = F.avg_pool2d(self.reduce(x), self.cell) if self.cell > 1 else self.reduce(x)
        x = self.norm(self.head(torch.cat([cells.flatten(1), F.avg_pool2d(x, x.shape[-1]).flatten(1)], dim=1)))
        return x / torch.sqrt((x * x).sum(1, keepdim=True) + 1e-12)


@dataclasses.dataclass
class Crops:
    """Vehicles in frames: (clip, frame, box); which vehicle it is and which camera sees it, by number."""

    places: list
    vehicles: np.ndarray
    cameras: np.ndarray


def crops_of(clips, every=1, fewest=2):
    """Crops of all vehicles that are seen in so many frames or more."""
    places, vehicles, cameras = [], [], []
    numbers = {}
    for number, clip in enumerate(clips):
        for index in range(0, len(clip.frames), every):
            for box in clip.boxes[index]:
                if box[5] == 1 and min(box[2], box[3]) >= LEAST_SIDE:
                    places.append((clip, index, box[:4]))
                    vehicles.append(numbers.setdefault((clip.city, int(box[6])), len(numbers)))
                    cameras.append(number)
    vehicles, cameras = np.array(vehicles), np.array(cameras)
    keep = np.bincount(vehicles)[vehicles] >= fewest
    _, vehicles = np.unique(vehicles[keep], return_inverse=True)
    return Crops([p for p, k in zip(places, keep) if k], vehicles, cameras[keep])


def shifted(box, rng):
    """A box as a detector might give it."""
    left, top, width, height = box
    move = rng.normal(0, 0.045, 4)
    return (left + move[0] * width, top + move[1] * height, width * (1 + move[2]), height * (1 + move[3]))


def cut(place, side, rng=None):
    clip, index, box = place
    if rng is None:
        return city_data.crop(clip.frames[index], box, side).transpose(2, 0, 1)
    pixels = city_data.crop(clip.frames[index], shifted(box, rng), side)
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    pixels = pixels.copy()
    if rng.random() < 0.4:  # something stands before it
        wide, high = (rng.uniform(0.1, 0.4, 2) * side).astype(int) + 1
        left, top = rng.integers(side - wide), rng.integers(side - high)
        pixels[top:top + high, left:left + wide] = rng.integers(20, 200, 3)
    return pixels.transpose(2, 0, 1)


def embeddings(model, crops, side):
    model.eval()
    parts = []
    for start in range(0, len(crops.places), 256):
        pixels = np.stack([cut(place, side) for place in crops.places[start:start + 256]])
        with torch.no_grad():
            parts.append(model(torch.from_numpy(np.ascontiguousarray(pixels)).to(model.head.weight.device)).cpu().numpy())
    return np.concatenate(parts)


def across_cameras(vectors, crops):
    """Rank 1 and average precision of each crop whose vehicle another camera of the city has seen.

    Searched are the crops of all other cameras; those of the same camera are left out.
    """
    likeness = vectors @ vectors.T
    city = np.array([place[0].city for place in crops.places])
    first, precision = [], []
    for index in range(len(vectors)):
        others = np.nonzero((crops.cameras != crops.cameras[index]) & (city == city[index]))[0]
        same = crops.vehicles[others] == crops.vehicles[index]
        if not same.any():
            continue
        ranked = same[np.argsort(-likeness[index, others], kind="stable")]
        first.append(ranked[0])
        places = np.nonzero(ranked)[0]
        precision.append(((np.arange(len(places)) + 1) / (places + 1)).mean())
    return np.array(first, float), np.array(precision)


def train(name, args, train_crops, tune_crops):
    size = SIZES[name]
    epochs = min(args.epochs or EPOCHS, EPOCHS)

    def batch(chosen, rng):
        pixels = np.stack([cut(train_crops.places[i], size.side, rng) for i in chosen])
        return [torch.from_numpy(np.ascontiguousarray(pixels)), torch.from_numpy(train_crops.vehicles[chosen])]

    batches = training_run.Batches(batch, len(train_crops.places), BATCH, args.seed)
    torch.manual_seed(args.seed)
    body = Appearance(size)
    model = nn.ModuleDict({"body": body, "classes": nn.Linear(WIDTH, int(train_crops.vehicles.max()) + 1, bias=False)})
    model = model.to(args.device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.step, weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, size.step, total_steps=epochs * batches.steps, pct_start=0.2)
    progress = training_run.Progress(args.work / "checkpoints" / f"appearance-{name}.pt", model, optimizer, scheduler)
    for epoch, step, (pixels, wanted) in batches.prepared(progress.epoch, epochs, args):
        if step == 0:
            progress.seed(args.seed)
            body.train()
            total = torch.zeros((), device=args.device)
        vectors = body(city_data.recoloured(pixels, 0.8).contiguous(memory_format=torch.channels_last))
        cosine = F.linear(vectors, F.normalize(model["classes"].weight))
        right = F.one_hot(wanted, cosine.shape[1]).bool()
        angle = torch.arccos(cosine.clamp(-0.999, 0.999))
        margin = MARGIN * min(1.0, (epoch + step / batches.steps) / (0.3 * epochs))
        loss = F.cross_entropy(SCALE * torch.where(right, torch.cos(angle + margin), cosine), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.detach()
        training_run.pulse(f"appearance-{name}", epoch, step, batches.steps)
        if step + 1 < batches.steps:
            continue
        progress.done_epoch()
        if progress.epoch % 3 == 0 or progress.epoch == epochs:
            first, precision = across_cameras(embeddings(body, tune_crops, size.side), tune_crops)
            training_run.log(f"appearance-{name}: epoch {progress.epoch}/{epochs} loss {total.item() / batches.steps:.3f} "
                             f"rank 1 {first.mean():.3f} mAP {precision.mean():.3f}")
    export(name, body, args, tune_crops)


def export(name, model, args, tune_crops):
    size, file = SIZES[name], f"appearance-{name}"
    model = model.to("cpu", memory_format=torch.contiguous_format)
    first, precision = across_cameras(embeddings(model, tune_crops, size.side), tune_crops)
    rng = np.random.default_rng(0)
    drawn = [precision[rng.integers(len(precision), size=len(precision))].mean() for _ in range(500)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    facts = training_run.export(model, (torch.zeros(1, 3, size.side, size.side, dtype=torch.uint8),), file, ["image"],
                                ["embedding"], folder=FOLDER)
    training_run.write_manifest(
        file, f"Tells what a vehicle looks like: pictures of the same one, {size.side}x{size.side}, give vectors that "
        f"point the same way ({name} network).", facts, "train_appearance.py", args.seed,
        inputs=[{
            "name": "image", "column": "image", "type": "image", "dtype": "uint8",
            "shape": ["batch", 3, size.side, size.side],
            "preprocess": [{"resize": {"width": size.side, "height": size.side}}],
        }],
        outputs=[{
            "name": "embedding", "column": "embedding", "type": "tensor", "dtype": "float32",
            "shape": ["batch", WIDTH], "postprocess": [],
        }],
        metric=training_run.measured("mean_average_precision", round(float(precision.mean()), 4),
                                     [round(float(low), 4), round(float(high), 4)], len(precision)),
        note=f"Vectors have length 1. Rank 1 on the validation scenes: {first.mean():.4f}.", folder=FOLDER)


def main():
    args = training_run.arguments("Trains the appearance embeddings.", 22, SIZES, batches=True)
    tune_crops = crops_of(city_data.clips_of(args.work / "city" / "validation"), every=8)
    if not args.export:
        train_crops = crops_of(city_data.clips_of(args.work / "city" / "looks"))
        training_run.log(f"{len(train_crops.places)} crops of {train_crops.vehicles.max() + 1} vehicles to learn from, "
                         f"{len(tune_crops.places)} to choose by")
    for name in SIZES:
        if args.only not in (None, name):
            continue
        if args.export:
            model = Appearance(SIZES[name])
            model.load_state_dict(training_run.learned(args.work / "checkpoints" / f"appearance-{name}.pt", "body."))
            export(name, model, args, tune_crops)
        else:
            train(name, args, train_crops, tune_crops)


if __name__ == "__main__":
    main()
