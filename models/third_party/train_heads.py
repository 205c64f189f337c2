"""Trains the heads of the fetched image models on frozen features.

    python train_heads.py --work WORK [--only efficientnet-lite0]

WORK has the generated data (see models/README.md) and the `.pth` files of the packages in
WORK/packages. The network itself is not trained: its features are computed once, then a hidden layer and a
last one learn to say from them what is in each cell. Runs in the environment of models/training.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import numpy as np
import onnxruntime
import torch
from PIL import Image
from torch.nn import functional

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "training"))
import scene  # noqa: E402

import efficientnet_lite  # noqa: E402
import state_dict  # noqa: E402

SIDE, HIDDEN, EPOCHS, BATCH, SEED = 256, 128, 30, 512, 17
MEAN, STD = 127.0, 128.0
WIDTHS = [len(values) for values in scene.GROUPS.values()]


def log(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def extractor(name, source, folder):
    """A session that gives what the head sees."""
    graph = efficientnet_lite.Graph()
    found = efficientnet_lite.backbone(graph, state_dict.read(source), name, SIDE)
    channels = 2 * found["middle"][2] + found["deep"][2]
    target = pathlib.Path(folder) / f"{name}.onnx"
    efficientnet_lite.save(
        graph, name, SIDE, [(efficientnet_lite.pooled(graph, found), [channels, 4, 4])], target)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(target), options, providers=["CPUExecutionProvider"])


def features(session, data, pairs, cached):
    """[images, 16, channels], computed once and kept in a file."""
    if cached.exists():
        return np.load(cached)
    rows = []
    for number, pair in enumerate(pairs):
        image = Image.open(data / "images" / f"{pair['key']}.jpg").convert("RGB").resize((SIDE, SIDE))
        pixels = (np.asarray(image, np.float32) - MEAN) / STD
        (cells,) = session.run(None, {"image": np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])})
        rows.append(cells[0].reshape(len(cells[0]), -1).T.astype(np.float16))
        if number % 500 == 0:
            log(f"{cached.stem}: {number}/{len(pairs)}")
    whole = np.stack(rows)
    np.save(cached.with_suffix(".partial.npy"), whole)
    cached.with_suffix(".partial.npy").rename(cached)
    return whole


def targets(pairs):
    return np.concatenate([scene.descriptor_targets(pair["objects"]) for pair in pairs])


def loss_of(scores, target):
    parts = torch.split(scores, [1, *WIDTHS], dim=1)
    loss = 4 * functional.binary_cross_entropy_with_logits(parts[0][:, 0], target[:, 0].float())
    for group, part in enumerate(parts[1:]):
        loss = loss + functional.cross_entropy(part, target[:, 1 + group], ignore_index=-1)
    return loss


def quality(scores, target):
    """Share of objects with presence and every property right."""
    parts = torch.split(scores, [1, *WIDTHS], dim=1)
    there = target[:, 0] == 1
    good = parts[0][:, 0] > 0
    for group, part in enumerate(parts[1:]):
        good &= part.argmax(1) == target[:, 1 + group]
    return (good & there).sum().item() / there.sum().item()


def train(name, given, wanted, tune, tune_wanted):
    mean, std = given.mean(0), given.std(0) + 1e-3
    layers = torch.nn.Sequential(
        torch.nn.Linear(given.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Dropout(0.2),
        torch.nn.Linear(HIDDEN, 1 + sum(WIDTHS)))
    optimizer = torch.optim.AdamW(layers.parameters(), lr=2e-3, weight_decay=0.02)
    steps = len(given) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=EPOCHS * steps)
    x, y = torch.from_numpy((given - mean) / std), torch.from_numpy(wanted)
    for epoch in range(EPOCHS):
        order, total = torch.randperm(len(x)), 0.0
        layers.train()
        for step in range(steps):
            chosen = order[step * BATCH:(step + 1) * BATCH]
            loss = loss_of(layers(x[chosen]), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        if epoch % 5 == 4:
            layers.eval()
            with torch.no_grad():
                share = quality(layers(torch.from_numpy((tune - mean) / std)), torch.from_numpy(tune_wanted))
            log(f"{name}: epoch {epoch + 1}/{EPOCHS} loss {total / steps:.3f}, whole objects on tune {share:.4f}")
    weights = [p.detach().numpy() for p in layers.parameters()]
    hidden = weights[0] / std
    return {"hidden": hidden, "hidden_bias": weights[1] - hidden @ mean, "last": weights[2],
            "last_bias": weights[3]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--only", choices=efficientnet_lite.DEPTHS)
    parser.add_argument("--images", type=int, default=1500, help="of the training set")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sets = {}
    for data, count in (("train", args.images), ("tune", 400)):
        sets[data] = json.loads((args.work / data / "annotations.json").read_text())[:count]
    for name in efficientnet_lite.DEPTHS:
        if args.only not in (None, name):
            continue
        (source,) = (args.work / "packages").glob(f"**/{name}-*.pth")
        with tempfile.TemporaryDirectory() as folder:
            session = extractor(name, source, folder)
        given = {data: features(session, args.work / data, pairs, args.work / f"{name}-{data}-{len(pairs)}.npy")
                 for data, pairs in sets.items()}
        flat = {data: values.reshape(-1, values.shape[-1]).astype(np.float32) for data, values in given.items()}
        torch.manual_seed(SEED)
        head = train(name, flat["train"], targets(sets["train"]), flat["tune"], targets(sets["tune"]))
        head = {part: values.astype(np.float16) for part, values in head.items()}
        np.savez(HERE / f"{name}-head.npz", **head, groups=np.array(WIDTHS), side=np.array(SIDE))


if __name__ == "__main__":
    main()
