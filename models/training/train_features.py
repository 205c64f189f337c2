"""Trains the image feature models.

    python train_features.py --work WORK [--only huge]

All predict the same scene descriptor: for each cell of a 4x4 grid (row by row) the probability
that an object is there, then the probabilities of its shape, colour, size and texture. So any
model that reads features works with each of them.

Larger networks see the picture at a higher resolution. They learn most of their epochs at a lower
one, which is cheaper, and only the last at their own.
"""

import dataclasses

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import training_run
import scene

WIDTHS = [len(values) for values in scene.GROUPS.values()]
CELLS = scene.GRID * scene.GRID
BATCH = 32
STEP_SIZE = 3e-3


@dataclasses.dataclass
class Size:
    """Channels of the first layer, then channels and residual blocks at strides 4, 8 and 16."""

    side: int
    first: int
    widths: tuple
    blocks: tuple
    epochs: tuple  # the side of the picture in each epoch


SIZES = {
    "tiny": Size(128, 8, (16, 24, 32), (0, 0, 1), (128,) * 14),
    "small": Size(128, 12, (24, 40, 64), (0, 1, 1), (128,) * 8),
    "medium": Size(192, 16, (24, 48, 80), (0, 1, 2), (128, 192, 192, 192, 192, 192)),
    "large": Size(256, 16, (32, 64, 96), (0, 1, 2), (128, 192, 192, 256, 256)),
    "huge": Size(256, 32, (56, 96, 128), (2, 3, 2), (128, 128, 192, 192, 256, 256)),
}


def convolution(inputs, outputs, kernel, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs), nn.ReLU(),
    )


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = convolution(width, width, 3)
        self.second = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        )

    def forward(self, x):
        return F.relu(x + self.second(self.first(x)))


def descriptor(logits):
    """[batch, 16 cells, 24] logits to the [batch, 384] descriptor."""
    parts = torch.split(logits, [1] + WIDTHS, dim=2)
    parts = [torch.sigmoid(parts[0])] + [torch.softmax(p, dim=2) for p in parts[1:]]
    return torch.cat(parts, dim=2).reshape(-1, scene.FEATURE_WIDTH)


class FeatureModel(nn.Module):
    """[batch, 3, side, side] to [batch, 384]; side a multiple of 64."""

    def __init__(self, size):
        super().__init__()
        layers, inputs = [convolution(3, size.first, 5, 2)], size.first
        for width, blocks in zip(size.widths, size.blocks):
            layers += [convolution(inputs, width, 3, 2)] + [Residual(width) for _ in range(blocks)]
            inputs = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(inputs, scene.CELL_WIDTH, 1)

    def logits(self, x):
        """[batch, 16 cells, 24]"""
        x = self.body(x)
        x = F.avg_pool2d(x, x.shape[-1] // scene.GRID)
        return self.head(x).permute(0, 2, 3, 1).reshape(-1, CELLS, scene.CELL_WIDTH)

    def forward(self, x):
        return descriptor(self.logits(x))


def loss_of(logits, target):
    """logits [batch, 16, 24]; target [batch, 16, 5] as of scene.descriptor_targets."""
    parts = torch.split(logits, [1] + WIDTHS, dim=2)
    there = target[:, :, 0].float()
    total = 4 * F.binary_cross_entropy_with_logits(parts[0][:, :, 0], there)
    for i, part in enumerate(parts[1:]):
        total = total + F.cross_entropy(
            part.flatten(0, 1), target[:, :, 1 + i].flatten(), ignore_index=-1
        )
    return total


def quality_of(values, targets):
    """Of descriptors or logits [n, 16, 24], what share is right: presence of cells, each property
    of objects, and objects with everything right."""
    parts = torch.split(values, [1] + WIDTHS, dim=2)
    # Logits are negative for "nothing there" and descriptors below one half.
    border = 0.5 if values.min() >= 0 else 0.0
    there, truth = parts[0][:, :, 0] > border, targets[:, :, 0] == 1
    result, whole = {"presence": (there == truth).float().mean().item()}, there.clone()
    for i, (group, part) in enumerate(zip(scene.GROUPS, parts[1:])):
        right = part.argmax(2) == targets[:, :, 1 + i]
        result[group] = right[truth].float().mean().item()
        whole &= right
    result["whole"] = whole[truth].float().mean().item()
    return result


def turned(pixels, grid, rng):
    """One of the eight symmetries of the square, for images and targets alike."""
    if rng.random() < 0.5:
        pixels, grid = pixels[:, ::-1], grid[:, ::-1]
    if rng.random() < 0.5:
        pixels, grid = pixels[:, :, ::-1], grid[:, :, ::-1]
    if rng.random() < 0.5:
        pixels, grid = pixels.transpose(0, 2, 1, 3), grid.transpose(0, 2, 1, 3)
    return pixels, grid


def run(model, pixels, what="forward"):
    """The model's output for all pixels."""
    model.eval()
    with torch.no_grad():
        return torch.cat([
            getattr(model, what)(training_run.image_tensor(pixels[i:i + 100]))
            for i in range(0, len(pixels), 100)
        ])


def train(name, args, train_set, tune_set):
    size = SIZES[name]
    keys, targets = train_set
    sides = size.epochs[:args.epochs]
    steps = len(targets) // BATCH
    torch.manual_seed(args.seed)
    model = FeatureModel(size).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=STEP_SIZE, weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, STEP_SIZE, total_steps=len(sides) * steps, pct_start=0.2
    )
    progress = training_run.Progress(args.work / "checkpoints" / f"features-{name}.pt",
                                     model, optimizer, scheduler)
    grid = targets.reshape(len(targets), scene.GRID, scene.GRID, -1)
    while progress.epoch < len(sides):
        side = sides[progress.epoch]
        pixels = training_run.load_images(args.work / "train", keys, side)
        rng = progress.rng(args.seed)
        model.train()
        order, total = rng.permutation(len(targets)), 0.0
        for step in range(steps):
            chosen = order[step * BATCH:(step + 1) * BATCH]
            x, y = turned(pixels[chosen], grid[chosen], rng)
            y = torch.from_numpy(np.ascontiguousarray(y)).flatten(1, 2)
            loss = loss_of(model.logits(training_run.image_tensor(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
            training_run.pulse(f"features-{name}", progress.epoch, step, steps)
        progress.done_epoch()
        last = progress.epoch == len(sides)
        count = len(tune_set[1]) if last else 500
        pixels = training_run.load_images(args.work / "tune", tune_set[0], side)[:count]
        found = quality_of(run(model, pixels, "logits"), torch.from_numpy(tune_set[1][:count]))
        training_run.log(
            f"features-{name}: epoch {progress.epoch}/{len(sides)} side {side} "
            f"loss {total / steps:.3f} " + " ".join(f"{k} {v:.3f}" for k, v in found.items())
        )
    keep_outputs(name, model, args, {"train": train_set, "tune": tune_set})
    export(name, model, args)


def keep_outputs(name, model, args, sets):
    """Descriptors of the generated scenes, which the answerers learn from."""
    for part, (keys, _) in sets.items():
        path = args.work / "outputs" / part / f"scene-features-{name}.npy"
        if not path.exists():
            pixels = training_run.load_images(args.work / part, keys, SIZES[name].side)
            path.parent.mkdir(parents=True, exist_ok=True)
            training_run.save_array(path, run(model, pixels).numpy())


def export(size_name, model, args):
    size, name = SIZES[size_name], f"scene-features-{size_name}"
    model = model.to(memory_format=torch.contiguous_format)
    facts = training_run.export(model, (torch.zeros(1, 3, size.side, size.side),), name,
                                ["image"], ["features"])
    training_run.write_manifest(
        name,
        f"Describes a scene cell by cell, seen at {size.side}x{size.side}: presence, shape, "
        f"colour, size and texture ({size_name} network).",
        facts, "train_features.py", args.seed,
        inputs=[{
            "name": "image", "column": "image", "type": "image", "dtype": "float32",
            "shape": ["batch", 3, size.side, size.side],
            "preprocess": [
                {"resize": {"width": size.side, "height": size.side}},
                {"normalize": {"mean": [training_run.MEAN] * 3, "std": [training_run.STD] * 3}},
            ],
        }],
        outputs=[{
            "name": "features", "column": "features", "type": "tensor", "dtype": "float32",
            "shape": ["batch", scene.FEATURE_WIDTH], "postprocess": [],
        }],
        metric=training_run.pending("answer_accuracy"),
    )


def targets_of(pairs):
    """[n, 16, 5] class indices."""
    return np.stack([scene.descriptor_targets(pair["objects"]) for pair in pairs])


def load(folder):
    """Keys and targets of a generated set."""
    pairs = training_run.annotations(folder)
    return [pair["key"] for pair in pairs], targets_of(pairs)


def main():
    args = training_run.arguments("Trains the image feature models.", 7, SIZES)
    train_set, tune_set = load(args.work / "train"), load(args.work / "tune")
    for name in SIZES:
        if args.only in (None, name):
            train(name, args, train_set, tune_set)


if __name__ == "__main__":
    main()
