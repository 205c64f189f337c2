"""Runs an ONNX model as its manifest says, with nothing of the training code but the front end."""

import itertools
import time
import wave

import numpy as np
import onnxruntime
import yaml
from PIL import Image

import frontend


def read_wav(path):
    with wave.open(str(path)) as source:
        return np.frombuffer(source.readframes(source.getnframes()), "<i2"), source.getframerate()


def preprocess_image(path, steps):
    image = Image.open(path).convert("RGB")
    for step in steps:
        (name, value), = step.items()
        if name == "resize":
            if image.size != (value["width"], value["height"]):
                image = image.resize((value["width"], value["height"]), Image.BILINEAR)
        elif name == "normalize":
            pixels = np.asarray(image, dtype=np.float32) / 255
            pixels = (pixels - np.array(value["mean"], np.float32)) / np.array(
                value["std"], np.float32)
            image = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        else:
            raise ValueError(f"unknown image step {name}")
    return image


def preprocess_audio(path, steps):
    samples, rate = read_wav(path)
    values = samples / 32768.0
    for step in steps:
        (name, value), = step.items()
        if name == "pad_or_trim":
            values = frontend.pad_or_trim(values, float(value["seconds"].removesuffix("s")), rate)
        elif name == "log_mel":
            if rate != value["sample_rate"]:
                raise ValueError(f"{path}: {rate} Hz")
            values = frontend.log_mel(values, **value)
        elif name == "standardize":
            values = frontend.standardize(values)
        elif name == "transpose":
            values = values.T
        else:
            raise ValueError(f"unknown audio step {name}")
    return np.ascontiguousarray(values, dtype=np.float32)


def preprocess_text(text, steps):
    (step,) = steps
    value = step["characters"]
    ids = [value["alphabet"].index(c) + 1 for c in text.lower() if c in value["alphabet"]]
    ids = ids[: value["length"]]
    return np.array(ids + [0] * (value["length"] - len(ids)), np.int64)


def postprocess(values, steps):
    for step in steps:
        (name, value), = step.items()
        if name == "argmax":
            values = [value["labels"][i] for i in values.argmax(axis=1)]
        elif name == "ctc_decode":
            texts = []
            for best in values.argmax(axis=2):
                kept = [k for k, _ in itertools.groupby(best.tolist()) if k != value["blank"]]
                texts.append("".join(value["alphabet"][k - 1] for k in kept))
            values = texts
        else:
            raise ValueError(f"unknown output step {name}")
    return values


PREPROCESS = {
    "image": preprocess_image, "audio": preprocess_audio, "text": preprocess_text,
    "tensor": lambda value, steps: value,
}


class Model:
    """A manifest and, when it is first needed, the session of its ONNX file."""

    def __init__(self, path):
        self.path = path
        self.manifest = yaml.safe_load(path.read_text())
        self.name = self.manifest["id"]
        self.file = path.parent / self.manifest["file"]
        self.flops = self.manifest["flops"]
        self._session = None

    @property
    def kind(self):
        """What it is in the pipeline: `image`, `speech` or `answerer`."""
        gives = [*self.manifest["outputs"], self.manifest.get("decoder")]
        column = gives[0]["column"]
        return {"features": "image", "question": "speech", "answer": "answerer"}[column]

    @property
    def session(self):
        if self._session is None:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            self._session = onnxruntime.InferenceSession(
                str(self.file), options, providers=["CPUExecutionProvider"])
        return self._session

    def prepare(self, columns):
        feed = {}
        for port in self.manifest["inputs"]:
            make, steps = PREPROCESS[port["type"]], port.get("preprocess", [])
            feed[port["name"]] = np.stack([make(v, steps) for v in columns[port["column"]]])
        return feed

    def run(self, batch=50, **columns):
        (port,) = self.manifest["outputs"]
        parts = []
        for i in range(0, len(next(iter(columns.values()))), batch):
            feed = self.prepare({name: values[i:i + batch] for name, values in columns.items()})
            parts.append(self.session.run([port["name"]], feed)[0])
        return postprocess(np.concatenate(parts), port.get("postprocess", []))

    def cpu_ms(self, runs, columns):
        """Processor time of one sample, batch 1, one thread: the least of several runs."""
        feed, least = self.prepare({k: v[:1] for k, v in columns.items()}), float("inf")
        for _ in range(runs):
            start = time.process_time_ns()
            self.session.run(None, feed)
            least = min(least, time.process_time_ns() - start)
        return least / 1e6
