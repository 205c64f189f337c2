"""Runs the models over generated pairs as their manifests say, and scores every combination.

    python evaluate.py --data DIR [--models ../vqa] [--expected FILE] [--set-metrics] [--time]

Uses nothing of the training code but the audio front end. Prints Markdown.
"""

import argparse
import collections
import csv
import itertools
import math
import pathlib
import time

import numpy as np
import onnxruntime
import yaml
from PIL import Image

import frontend

FEATURES = ["scene-features-small", "scene-features-large"]
SPEECH = ["speech-small", "speech-large"]
TEMPLATES = [
    ("color", "what color"), ("shape", "what shape"), ("size", "what size"),
    ("pattern", "what pattern"), ("count", "how many"), ("exists", "is there"),
    ("more", "are there more"), ("fewer", "are there fewer"), ("same color", "do the"),
    ("left of", " left of "), ("above", " above "),
]


def read_wav(path):
    import wave

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
    """A manifest and the session of its ONNX file."""

    def __init__(self, folder, name):
        self.manifest = yaml.safe_load((folder / f"{name}.yaml").read_text())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(folder / self.manifest["file"]), options, providers=["CPUExecutionProvider"]
        )

    def prepare(self, **columns):
        feed = {}
        for port in self.manifest["inputs"]:
            make, steps = PREPROCESS[port["type"]], port.get("preprocess", [])
            feed[port["name"]] = np.stack([make(v, steps) for v in columns[port["column"]]])
        return feed

    def run(self, batch=64, **columns):
        (port,) = self.manifest["outputs"]
        feed = self.prepare(**columns)
        count = len(next(iter(feed.values())))
        parts = [
            self.session.run([port["name"]], {k: v[i:i + batch] for k, v in feed.items()})[0]
            for i in range(0, count, batch)
        ]
        return postprocess(np.concatenate(parts), port.get("postprocess", []))

    def cpu_ms(self, runs=300, **columns):
        """Processor time of one sample, batch 1, one thread: the least of several runs."""
        feed = {k: v[:1] for k, v in self.prepare(**columns).items()}
        least = float("inf")
        for _ in range(runs):
            start = time.process_time_ns()
            self.session.run(None, feed)
            least = min(least, time.process_time_ns() - start)
        return least / 1e6


def wilson(right, count):
    """95 % interval of a share."""
    z, p = 1.96, right / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return middle - half, middle + half


def word_errors(reference, hypothesis):
    a, b = reference.split(), hypothesis.split()
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1,
                                           previous + (word != other))
    return row[-1]


def word_error_rate(references, hypotheses, draws=2000):
    """The rate and its 95 % interval, by drawing utterances again (bootstrap)."""
    errors = np.array([word_errors(a, b) for a, b in zip(references, hypotheses)])
    words = np.array([len(a.split()) for a in references])
    rng = np.random.default_rng(0)
    again = rng.integers(0, len(words), size=(draws, len(words)))
    rates = np.sort(errors[again].sum(axis=1) / words[again].sum(axis=1))
    return errors.sum() / words.sum(), rates[int(0.025 * draws)], rates[int(0.975 * draws)]


def template_of(question):
    return next((name for name, mark in TEMPLATES if mark in question), "other")


def percent(share):
    return f"{100 * share:.1f}"


def metric(name, value, low, high, samples):
    return {"name": name, "value": round(float(value), 4),
            "interval": [round(float(low), 4), round(float(high), 4)], "samples": samples,
            "higher_is_better": name == "answer_accuracy"}


def set_metrics(folder, metrics):
    """Replaces the metric, the last entry of a manifest."""
    for name, values in metrics.items():
        path = folder / f"{name}.yaml"
        head = path.read_text().split("\nmetric:")[0]
        lines = ["metric:"] + [
            f"  {k}: {str(v).lower() if isinstance(v, bool) else v}" for k, v in values.items()
        ]
        path.write_text("\n".join([head] + lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--models", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent / "vqa")
    parser.add_argument("--expected", type=pathlib.Path,
                        help="write key,recognised,answer of the large models to this file")
    parser.add_argument("--set-metrics", action="store_true",
                        help="put the measured metrics into the manifests")
    parser.add_argument("--time", action="store_true", help="measure processor time as well")
    args = parser.parse_args()

    with open(args.data / "truth.csv", newline="") as source:
        rows = list(csv.DictReader(source))
    keys = [row["key"] for row in rows]
    asked = [row["question"] for row in rows]
    truth = [row["answer"] for row in rows]
    images = [args.data / "images" / f"{key}.jpg" for key in keys]
    sounds = [args.data / "questions" / f"{key}.wav" for key in keys]
    models = {name: Model(args.models, name) for name in FEATURES + SPEECH + ["answerer"]}
    answerer = models["answerer"]

    features = {name: models[name].run(image=images) for name in FEATURES}
    heard = {name: models[name].run(audio=sounds) for name in SPEECH}
    metrics = {}

    print(f"{len(rows)} pairs.\n\n| recogniser | word error rate, % | 95 % interval | "
          "questions without an error, % |\n|---|---|---|---|")
    for name in SPEECH:
        rate, low, high = word_error_rate(asked, heard[name])
        metrics[name] = metric("word_error_rate", rate, low, high, len(rows))
        exact = np.mean([a == b for a, b in zip(asked, heard[name])])
        print(f"| {name} | {percent(rate)} | {percent(low)} to {percent(high)} | "
              f"{percent(exact)} |")

    print("\n| image features | question text | answers right, % | 95 % interval |\n"
          "|---|---|---|---|")
    texts = {**heard, "as typed (no recogniser)": asked}
    answers = {}
    for image_model, text_source in itertools.product(FEATURES, texts):
        given = answerer.run(features=features[image_model], question=texts[text_source])
        answers[image_model, text_source] = given
        right = sum(a == b for a, b in zip(given, truth))
        low, high = wilson(right, len(rows))
        print(f"| {image_model} | {text_source} | {percent(right / len(rows))} | "
              f"{percent(low)} to {percent(high)} |")
        value = metric("answer_accuracy", right / len(rows), low, high, len(rows))
        if text_source == "speech-large":
            metrics[image_model] = value
            if image_model == "scene-features-large":
                metrics["answerer"] = value

    groups = collections.defaultdict(list)
    for i, question in enumerate(asked):
        groups[template_of(question)].append(i)
    blind = sum(
        collections.Counter(truth[i] for i in members).most_common(1)[0][1]
        for members in groups.values()
    )
    print(f"\nAlways the most frequent answer of the question's template: "
          f"{percent(blind / len(rows))} %.\n")

    best = answers["scene-features-large", "speech-large"]
    weak = answers["scene-features-small", "speech-small"]
    print("| template | pairs | most frequent answer, % | small + small, % | large + large, % |"
          "\n|---|---|---|---|---|")
    for name, members in sorted(groups.items(), key=lambda g: -len(g[1])):
        share = lambda given: percent(np.mean([given[i] == truth[i] for i in members]))
        common = collections.Counter(truth[i] for i in members).most_common(1)[0][1]
        print(f"| {name} | {len(members)} | {percent(common / len(members))} | "
              f"{share(weak)} | {share(best)} |")

    if args.time:
        print("\n| model | FLOPs per sample | parameters | file, kB | CPU ms |\n|---|---|---|---|---|")
        samples = {"image": images[:1], "audio": sounds[:1],
                   "features": features[FEATURES[0]][:1], "question": asked[:1]}
        for name, model in models.items():
            m = model.manifest
            size = (args.models / m["file"]).stat().st_size / 1000
            columns = {port["column"]: samples[port["column"]] for port in m["inputs"]}
            print(f"| {name} | {m['flops'] / 1e6:.1f} M | {m['parameters']} | {size:.0f} | "
                  f"{model.cpu_ms(**columns):.2f} |")
    if args.set_metrics:
        set_metrics(args.models, metrics)
    if args.expected:
        with open(args.expected, "w", newline="") as target:
            writer = csv.writer(target, lineterminator="\n")
            writer.writerow(["key", "recognised", "answer"])
            writer.writerows(zip(keys, heard["speech-large"], best))


if __name__ == "__main__":
    main()
