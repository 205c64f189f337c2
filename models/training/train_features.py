"""Trains the two image feature models.

    python train_features.py --work WORK

Both predict the same scene descriptor: for each cell of a 4x4 grid (row by row) the probability
that an object is there, then the probabilities of its shape, colour, size and texture. So any
model that reads features works with either.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import training_run
import scene

WIDTHS = [len(values) for values in scene.GROUPS.values()]
EPOCHS = {"small": 20, "large": 10}
BATCH = 64


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


class FeatureModel(nn.Module):
    """[batch, 3, 128, 128] to [batch, 256]."""

    def __init__(self, size):
        super().__init__()
        if size == "small":
            layers = [convolution(3, 12, 5, 4), convolution(12, 24, 3, 2),
                      convolution(24, 24, 3), convolution(24, 40, 3, 2), convolution(40, 48, 3, 2)]
            width = 48
        else:
            layers = [convolution(3, 16, 5, 2), convolution(16, 32, 3, 2), Residual(32),
                      convolution(32, 64, 3, 2), Residual(64),
                      convolution(64, 96, 3, 2), Residual(96), convolution(96, 128, 3, 2)]
            width = 128
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(width, scene.CELL_WIDTH, 1)

    def logits(self, x):
        """[batch, 16 cells, 16]"""
        grid = self.head(self.body(x)).permute(0, 2, 3, 1)
        return grid.reshape(-1, scene.GRID * scene.GRID, scene.CELL_WIDTH)

    def forward(self, x):
        parts = torch.split(self.logits(x), [1] + WIDTHS, dim=2)
        parts = [torch.sigmoid(parts[0])] + [torch.softmax(p, dim=2) for p in parts[1:]]
        return torch.cat(parts, dim=2).reshape(-1, scene.FEATURE_WIDTH)


def loss_of(logits, target):
    parts = torch.split(logits, [1] + WIDTHS, dim=2)
    there = target[:, :, 0].float()
    total = 4 * F.binary_cross_entropy_with_logits(parts[0][:, :, 0], there)
    for i, part in enumerate(parts[1:]):
        total = total + F.cross_entropy(
            part.flatten(0, 1), target[:, :, 1 + i].flatten(), ignore_index=-1
        )
    return total


def turned(pixels, grid, rng):
    """One of the eight symmetries of the square, for images and targets alike."""
    if rng.random() < 0.5:
        pixels, grid = pixels[:, ::-1], grid[:, ::-1]
    if rng.random() < 0.5:
        pixels, grid = pixels[:, :, ::-1], grid[:, :, ::-1]
    if rng.random() < 0.5:
        pixels, grid = pixels.transpose(0, 2, 1, 3), grid.transpose(0, 2, 1, 3)
    return pixels, grid


def quality(model, pixels, targets):
    """Share of cells with the right presence, and of objects with every property right."""
    model.eval()
    presence = right = objects = 0
    with torch.no_grad():
        for i in range(0, len(pixels), 200):
            parts = torch.split(model.logits(training_run.image_tensor(pixels[i:i + 200])),
                                [1] + WIDTHS, dim=2)
            target = torch.from_numpy(targets[i:i + 200])
            there = parts[0][:, :, 0] > 0
            truth = target[:, :, 0] == 1
            presence += (there == truth).sum().item()
            good = there.clone()
            for g, part in enumerate(parts[1:]):
                good &= part.argmax(2) == target[:, :, 1 + g]
            right += (good & truth).sum().item()
            objects += truth.sum().item()
    return presence / targets[:, :, 0].size, right / objects


def train(size, args, data):
    (pixels, targets), (tune_pixels, tune_targets) = data
    epochs = args.epochs or EPOCHS[size]
    steps = len(pixels) // BATCH
    torch.manual_seed(args.seed)
    model = FeatureModel(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 4e-3, total_steps=epochs * steps, pct_start=0.2
    )
    progress = training_run.Progress(args.work / "checkpoints" / f"features-{size}.pt",
                               model, optimizer, scheduler)
    grid = targets.reshape(len(targets), scene.GRID, scene.GRID, -1)
    while progress.epoch < epochs:
        rng = progress.rng(args.seed)
        model.train()
        order, total = rng.permutation(len(pixels)), 0.0
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
        progress.done_epoch()
        presence, whole = quality(model, tune_pixels, tune_targets)
        training_run.log(f"features-{size}: epoch {progress.epoch}/{epochs} loss {total / steps:.3f} "
                   f"presence {presence:.4f} whole objects {whole:.4f}")

    name = f"scene-features-{size}"
    facts = training_run.export(model, (torch.zeros(1, 3, scene.SIDE, scene.SIDE),), name,
                          ["image"], ["features"])
    training_run.write_manifest(
        name,
        f"Describes a 128x128 scene cell by cell: presence, shape, colour, size and texture "
        f"({size} network).",
        facts, "train_features.py", args.seed,
        inputs=[{
            "name": "image", "column": "image", "type": "image", "dtype": "float32",
            "shape": ["batch", 3, scene.SIDE, scene.SIDE],
            "preprocess": [
                {"resize": {"width": scene.SIDE, "height": scene.SIDE}},
                {"normalize": {"mean": [training_run.MEAN] * 3, "std": [training_run.STD] * 3}},
            ],
        }],
        outputs=[{
            "name": "features", "column": "features", "type": "tensor", "dtype": "float32",
            "shape": ["batch", scene.FEATURE_WIDTH], "postprocess": [],
        }],
        metric=training_run.pending("answer_accuracy"),
    )


def load(folder):
    pairs = training_run.annotations(folder)
    targets = np.stack([scene.descriptor_targets(pair["objects"]) for pair in pairs])
    return training_run.load_images(folder, [pair["key"] for pair in pairs]), targets


def main():
    args = training_run.arguments("Trains the two image feature models.", seed=7)
    data = load(args.work / "train"), load(args.work / "tune")
    for size in EPOCHS:
        if args.only in (None, size):
            train(size, args, data)


if __name__ == "__main__":
    main()
