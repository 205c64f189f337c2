"""Runs the fetched models over generated pairs and keeps what they give, for models/training/evaluate.py.

    python fetched_outputs.py --data DIR --outputs CACHE [--only NAME] [--cache FOLDER]

Writes CACHE/NAME.npy or CACHE/NAME.jsonl and the processor time in CACHE/cpu_ms.json. A stopped run of a speech model
goes on where it was. Then `evaluate.py --data DIR --outputs CACHE --also ../third_party/NAME.yaml` scores them. Runs in
the environment of models/training.
"""

import argparse
import csv
import json
import math
import os
import pathlib
import sys
import time

import numpy as np
import onnxruntime

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "training"))
import runner  # noqa: E402


def cache_folder():
    given = os.environ.get("TIDEMILL_CACHE")
    if given:
        return pathlib.Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "tidemill"


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def resampled(samples, old, new):
    """As the engine does: a polyphase filter, see operators/media/src/resample.rs."""
    divisor = math.gcd(old, new)
    up, down = new // divisor, old // divisor
    half = 10 * max(up, down)
    taps = np.sinc(np.arange(-half, half + 1) / max(up, down)) * np.kaiser(2 * half + 1, 5.0)
    taps *= up / taps.sum()
    filled = np.zeros(len(samples) * up)
    filled[::up] = samples
    count = -(-len(samples) * up // down)
    whole = np.concatenate([np.convolve(filled, taps)[half:], np.zeros(down)])
    return whole[:down * count:down].astype(np.float32)


def token_texts(path):
    data, texts, at = path.read_bytes(), [], 0
    while at < len(data):
        length, at = data[at], at + 1
        if length >= 128:
            length, at = data[at] * 128 + length - 128, at + 1
        texts.append(data[at:at + length])
        at += length
    return texts


class Recogniser:
    """An encoder and a decoder, as the manifest puts them together."""

    def __init__(self, manifest, folder):
        self.rate = manifest["inputs"][0]["preprocess"][0]["resample"]["sample_rate"]
        self.sound, self.decoder = manifest["inputs"][0]["name"], manifest["decoder"]
        self.encode = session(folder / manifest["file"])
        self.decode = session(folder / self.decoder["file"])
        self.texts = token_texts(folder / self.decoder["tokenizer"]["file"])
        self.outputs = [port.name for port in self.decode.get_outputs()]
        self.cached = [port for port in self.decode.get_inputs()
                       if port.name.startswith(self.decoder["cache"]["inputs"])]

    def write(self, path):
        samples, old = runner.read_wav(path)
        sound = resampled(samples / 32768.0, old, self.rate)[None]
        ones = np.ones(sound.shape, np.int64)
        d = self.decoder
        mask = d.get("mask")
        feed = {self.sound: sound, **({mask["encoder"]: ones} if mask else {})}
        (hidden,) = self.encode.run([d["encoded"]["output"]], feed)
        cache = {port.name: np.zeros((1, port.shape[1], 0, port.shape[3]), np.float32) for port in self.cached}
        most = min(d["max_tokens"], math.ceil(sound.shape[1] / self.rate * d["tokens_per_second"]))
        tokens, last = [], d["feed"]["start"]
        for step in range(most):
            feed = {d["feed"]["input"]: np.array([[last]]), d["encoded"]["input"]: hidden,
                    d["cache"]["flag"]: np.array([step > 0]), **cache}
            if mask:
                feed[mask["decoder"]] = ones
            given = dict(zip(self.outputs, self.decode.run(None, feed)))
            last = int(given[d["feed"]["output"]][0, -1].argmax())
            if last == d["end"]:
                break
            tokens.append(last)
            for name in cache:
                if step == 0 or d["cache"]["fixed"] not in name:
                    rest = name.removeprefix(d["cache"]["inputs"])
                    cache[name] = given[d["cache"]["outputs"] + rest]
        texts = [self.texts[t] for t in tokens if t < len(self.texts)]
        spoken = [t for t in texts if not (len(t) > 2 and t.startswith(b"<") and t.endswith(b">"))]
        return b"".join(spoken).decode("utf-8", "replace").replace("\u2581", " ").strip()


def speech(manifest, folder, args, keys):
    target = args.outputs / f"{manifest['id']}.jsonl"
    partial = target.with_suffix(".partial")
    done = partial.read_text().splitlines() if partial.exists() else []
    recogniser, times = Recogniser(manifest, folder), []
    with open(partial, "a") as file:
        for key in keys[len(done):]:
            start = time.process_time()
            text = recogniser.write(args.data / "questions" / f"{key}.wav")
            times.append(1e3 * (time.process_time() - start))
            file.write(json.dumps({"key": key, "text": text, "cpu_ms": round(times[-1], 2)}) + "\n")
            file.flush()
    partial.rename(target)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    return float(np.mean([line["cpu_ms"] for line in lines if "cpu_ms" in line]))


def images(manifest, folder, args, keys):
    target = args.outputs / f"{manifest['id']}.npy"
    loaded, port = session(folder / manifest["file"]), manifest["inputs"][0]
    rows, least = [], math.inf
    for key in keys:
        image = runner.preprocess_image(args.data / "images" / f"{key}.jpg", port["preprocess"])
        start = time.process_time()
        rows.append(loaded.run(None, {port["name"]: image[None]})[0][0])
        least = min(least, 1e3 * (time.process_time() - start))
    np.save(target.with_suffix(".partial.npy"), np.stack(rows).astype(np.float32))
    target.with_suffix(".partial.npy").rename(target)
    return least


def main():
    import yaml

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--outputs", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, default=cache_folder())
    parser.add_argument("--only")
    args = parser.parse_args()
    with open(args.data / "truth.csv", newline="") as source:
        keys = [row["key"] for row in csv.DictReader(source)]
    for path in sorted(HERE.glob("*.yaml")):
        manifest = yaml.safe_load(path.read_text())
        name, folder = manifest["id"], args.cache / "models" / manifest["id"]
        kept = list(args.outputs.glob(f"{name}.npy")) + list(args.outputs.glob(f"{name}.jsonl"))
        if args.only not in (None, name) or kept:
            continue
        if not (folder / manifest["file"]).exists():
            print(f"{name}: not fetched, skipped (tidemill models fetch {name})", file=sys.stderr)
            continue
        args.outputs.mkdir(parents=True, exist_ok=True)
        cost = (speech if "decoder" in manifest else images)(manifest, folder, args, keys)
        known_path = args.outputs / "cpu_ms.json"
        known = json.loads(known_path.read_text()) if known_path.exists() else {}
        known_path.write_text(json.dumps({**known, name: cost, f"{name} sha256": manifest["sha256"]}, indent=1))
        print(f"{name}: {len(keys)} done, {cost:.1f} ms of processor time each", file=sys.stderr)


if __name__ == "__main__":
    main()
