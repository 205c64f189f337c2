"""What the training scripts share: settings, data, checkpoints, export and manifests."""

import argparse
import csv
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import onnx
import torch
import yaml
from PIL import Image

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent / "vqa"
MEAN, STD = 0.5, 0.25
ALPHABET = " abcdefghijklmnopqrstuvwxyz'"
QUESTION_LENGTH = 64


def arguments(description, seed, sizes, batches=False):
    """Options of a training script; `batches`: also those of one that trains with `Batches`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--work", type=pathlib.Path, required=True,
                        help="folder of generated data and checkpoints")
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--epochs", type=int, help="only the first so many")
    parser.add_argument("--only", choices=list(sizes), help="train this model only")
    if batches:
        parser.add_argument("--export", action="store_true",
                            help="write the models of the checkpoints again, which needs no examples to learn from")
        parser.add_argument("--device", default="cpu", help="where to train: cpu (the default) or cuda")
        parser.add_argument("--jobs", type=int, default=0,
                            help="processes that prepare batches beside the training (default: none)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    return args


def learned(path, part=""):
    """Weights of a checkpoint; with a part, of what has this name in the model."""
    weights = torch.load(path, weights_only=True, map_location="cpu")["model"]
    return {name.removeprefix(part): value for name, value in weights.items() if name.startswith(part)}


def log(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def annotations(folder):
    return json.loads((folder / "annotations.json").read_text())


def truth(folder):
    with open(folder / "truth.csv", newline="") as source:
        return list(csv.DictReader(source))


def save_array(path, values):
    """Whole or not at all, so that a stopped run leaves no half of a file."""
    temporary = path.with_suffix(f".{os.getpid()}.npy")
    np.save(temporary, values)
    temporary.replace(path)


def load_images(folder, keys, side):
    """[n, side, side, 3] bytes, kept beside the data; resized as the engine does."""
    cache = folder / f"images_{side}.npy"
    if not cache.exists():
        log(f"{folder.name}: reading images at {side}x{side}")
        pixels = np.empty((len(keys), side, side, 3), np.uint8)
        for i, key in enumerate(keys):
            image = Image.open(folder / "images" / f"{key}.jpg").convert("RGB")
            pixels[i] = image if image.size == (side, side) else image.resize(
                (side, side), Image.BILINEAR)
        save_array(cache, pixels)
    return np.load(cache, mmap_mode="r")


def image_tensor(pixels):
    """Bytes [n, h, w, 3] to the models' input [n, 3, h, w]."""
    values = torch.from_numpy(np.ascontiguousarray(pixels)).float()
    return ((values / 255 - MEAN) / STD).permute(0, 3, 1, 2)


def tokens(text):
    """Index in the alphabet + 1; 0 fills up."""
    ids = [ALPHABET.index(c) + 1 for c in text.lower() if c in ALPHABET][:QUESTION_LENGTH]
    return ids + [0] * (QUESTION_LENGTH - len(ids))


def pulse(name, epoch, step, steps, state={}):
    """Says every minute how far an epoch is."""
    if state.get("key") != (name, epoch):
        state.update(key=(name, epoch), start=time.monotonic(), said=time.monotonic())
    if time.monotonic() - state["said"] > 60:
        state["said"] = time.monotonic()
        left = (state["said"] - state["start"]) / step * (steps - step)
        log(f"{name}: epoch {epoch + 1}, step {step}/{steps}, {left:.0f} s left of it")


class Progress:
    """Runs epochs and can be stopped and started again: the state is saved after each.

    With another number of epochs than before, a run goes on at the same step of the new schedule.
    """

    def __init__(self, path, model, optimizer, scheduler):
        self.path, self.parts = path, {"model": model, "optimizer": optimizer,
                                       "scheduler": scheduler}
        self.epoch = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            saved = torch.load(path, weights_only=True, map_location="cpu")
            steps = {key: saved["scheduler"][key] for key in ("last_epoch", "_step_count")}
            saved["scheduler"] = {**scheduler.state_dict(), **steps}
            for name, part in self.parts.items():
                part.load_state_dict(saved[name])
            self.epoch = saved["epoch"]
            log(f"{path.stem}: resumed after epoch {self.epoch}")

    def seed(self, seed):
        """Fresh random numbers of torch for the coming epoch, the same after a restart."""
        torch.manual_seed(seed * 1000 + self.epoch)

    def rng(self, seed):
        """The same, and random numbers for the examples."""
        self.seed(seed)
        return np.random.default_rng([seed, self.epoch])

    def done_epoch(self):
        self.epoch += 1
        state = {name: part.state_dict() for name, part in self.parts.items()}
        temporary = self.path.with_suffix(".tmp")
        torch.save({**state, "epoch": self.epoch}, temporary)
        temporary.replace(self.path)


class Batches(torch.utils.data.Dataset):
    """The batches of a run by number: `make` gets the examples of one, and random numbers of its own.

    So they are the same whoever prepares them, and after a restart.
    """

    def __init__(self, make, examples, size, seed):
        self.make, self.examples, self.size, self.seed = make, examples, size, seed
        self.steps = examples // size
        self.order = (None, None)

    def __getitem__(self, number):
        epoch, step = divmod(number, self.steps)
        if self.order[0] != epoch:
            self.order = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.examples))
        chosen = self.order[1][step * self.size:(step + 1) * self.size]
        return self.make(chosen, np.random.default_rng([self.seed, epoch, step]))

    def prepared(self, first, epochs, args):
        """Those of the epochs from the first one on, each with its epoch and step, on the device."""
        torch.set_num_threads(1)
        numbers = range(first * self.steps, epochs * self.steps)
        ahead = {"num_workers": args.jobs, "prefetch_factor": 8} if args.jobs else {}
        loader = torch.utils.data.DataLoader(self, batch_size=None, sampler=numbers, pin_memory=args.device != "cpu", **ahead)
        for number, batch in zip(numbers, loader):
            yield *divmod(number, self.steps), [part.to(args.device, non_blocking=True) for part in batch]


def count_flops(model, example):
    """Convolutions and matrix products of one sample, multiply-add as 2."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*example)
    return int(counter.get_total_flops())


def export(model, example, name, inputs, outputs, folder=MODELS):
    """Writes NAME.onnx with a free batch dimension; returns facts for the manifest."""
    model.eval()
    path = folder / f"{name}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    axes = {n: {0: "batch"} for n in inputs + outputs}
    torch.onnx.export(model, example, str(path), input_names=inputs, output_names=outputs,
                      dynamic_axes=axes, opset_version=17, dynamo=False)
    graph = onnx.load(str(path))
    onnx.checker.check_model(graph)
    with torch.no_grad():
        results = model(*example)
    for port, value in zip(graph.graph.output, [results] if len(outputs) == 1 else results):
        for dim, size in list(zip(port.type.tensor_type.shape.dim, value.shape))[1:]:
            dim.dim_value = size
    del graph.graph.value_info[:]
    for node in graph.graph.node:  # no traces of the machine that trained it
        node.ClearField("doc_string")
    onnx.save(graph, str(path))
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops": count_flops(model, example),
    }


class _Flow(list):
    """A list to be written on one line."""


class _FlowMap(dict):
    """A map to be written on one line."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)


def _short_float(dumper, value):
    text = f"{value:.1e}".replace("e-0", "e-") if 0 < abs(value) < 1e-3 else repr(value)
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(_Flow, lambda d, v: d.represent_sequence(
    "tag:yaml.org,2002:seq", v, flow_style=True))
_Dumper.add_representer(_FlowMap, lambda d, v: d.represent_mapping(
    "tag:yaml.org,2002:map", v, flow_style=True))
_Dumper.add_representer(float, _short_float)


def _step(step):
    (name, value), = step.items()
    if isinstance(value, dict):
        value = _FlowMap({k: _Flow(v) if isinstance(v, list) else v for k, v in value.items()})
    return {name: value}


def commit():
    """The commit of these scripts, which must be as committed."""
    git = lambda *words: subprocess.run(
        ["git", *words, "--", "*.py"], cwd=HERE, capture_output=True, text=True, check=False)
    changed, last = git("status", "--porcelain"), git("log", "-1", "--format=%H")
    if changed.returncode or changed.stdout or not last.stdout:
        log("the scripts are not as committed: the manifest says `uncommitted`")
        return "uncommitted"
    return last.stdout.strip()


def write_manifest(name, description, facts, script, seed, inputs, outputs, metric, note=None, folder=MODELS):
    origin = {"kind": "trained", "script": f"models/training/{script}", "commit": commit(),
              "seed": seed}
    if note:
        origin["note"] = note
    ports = lambda items: [
        {**item, "shape": _Flow(item["shape"]),
         **{k: [_step(s) for s in item[k]] for k in ("preprocess", "postprocess") if k in item}}
        for item in items
    ]
    manifest = {
        "version": 1, "id": name, "description": description, "file": f"{name}.onnx",
        "sha256": facts["sha256"], "licence": "Apache-2.0", "origin": origin,
        "parameters": facts["parameters"], "flops": facts["flops"],
        "backends": _Flow(["rten", "ort"]),
        "inputs": ports(inputs), "outputs": ports(outputs),
    }
    manifest["metric"] = metric
    text = yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    (folder / f"{name}.yaml").write_text(
        "# yaml-language-server: $schema=../../spec/schemas/model.schema.json\n" + text
    )


def measured(name, value, interval, samples):
    return {"name": name, "value": value, "interval": _Flow(interval), "samples": samples, "higher_is_better": True}


def pending(name):
    return {"name": name, "value": 0.0, "interval": _Flow([0.0, 0.0]), "samples": 0,
            "higher_is_better": name != "word_error_rate"}
