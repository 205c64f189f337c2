"""Measures the models of models/aicity on the shipped clips, as their manifests say, with ONNX Runtime.

    python evaluate_city.py [--also MANIFEST...]

Writes models/aicity/RESULTS.md and results.json, and models/testdata/aicity/: some frames as JPEG, what is in them, and
what each model must reach on them (`expected.csv`), which the tests of other implementations are held to.
"""

import argparse
import csv
import json
import pathlib
import types

import numpy as np
from PIL import Image

import city_data
import detection_metric
import runner
import training_run
from train_appearance import across_cameras, crops_of

ROOT = training_run.HERE.parent.parent
FOLDER = training_run.HERE.parent / "aicity"
CLIPS = ROOT / "examples" / "aicity" / "data"
SAMPLE = training_run.HERE.parent / "testdata" / "aicity"
SIZES = ["tiny", "small", "medium", "large", "huge"]
EVERY = 10
SAMPLE_FRAMES = range(40, 600, 90)


def run(model, pictures):
    """The output for pictures, each scaled as the manifest says."""
    (port,) = model.manifest["inputs"]
    (step,) = port["preprocess"]
    size = (step["resize"]["width"], step["resize"]["height"])
    parts = []
    for start in range(0, len(pictures), 32):
        pixels = [city_data.whole(np.ascontiguousarray(p), size).transpose(2, 0, 1) for p in pictures[start:start + 32]]
        parts.append(model.session.run(None, {port["name"]: np.stack(pixels)})[0])
    return np.concatenate(parts)


def cost(model):
    """Milliseconds of processor time for one picture, the least of several."""
    (port,) = model.manifest["inputs"]
    feed = {port["name"]: np.random.default_rng(0).integers(0, 256, (1, *port["shape"][1:]), dtype=np.uint8)}
    least = float("inf")
    for _ in range(15):
        start = runner.time.process_time_ns()
        model.session.run(None, feed)
        least = min(least, runner.time.process_time_ns() - start)
    return least / 1e6


def detections(model, pictures, least):
    """Boxes with so high a score or a higher one, suppressed as the manifest says."""
    overlap = decoding(model)["iou"]
    sizes = [(picture.shape[1], picture.shape[0]) for picture in pictures]
    return [detection_metric.kept(rows, size, least, overlap) for rows, size in zip(run(model, pictures), sizes)]


def decoding(model):
    (step,) = model.manifest["outputs"][0]["postprocess"]
    return step["decode_boxes"]


def detector_figures(model, pictures, truth):
    found = detections(model, pictures, detection_metric.LEAST_SCORE)
    value, interval = detection_metric.average_precision_with_interval(found, truth)
    threshold = decoding(model)["threshold"]
    scores, right, count = detection_metric.judged(found, truth)
    chosen = scores >= threshold
    return {"average_precision_50": value, "interval": interval, "threshold": threshold,
            "precision": round(float(right[chosen].mean()), 4), "recall": round(float(right[chosen].sum() / count), 4),
            "boxes": int(count), "frames": len(pictures)}


def appearance_figures(model, crops):
    pictures = [city_data.cut(clip.frames[index], box) for clip, index, box in crops.places]
    first, precision = across_cameras(run(model, pictures), crops)
    return {"rank_1": round(float(first.mean()), 4), "mean_average_precision": round(float(precision.mean()), 4),
            "queries": len(first), "crops": len(pictures)}


def write_sample(clips):
    """Frames as JPEG with their truth; gives them as a reader of the JPEG files sees them."""
    SAMPLE.mkdir(parents=True, exist_ok=True)
    rows, read = [["picture", "camera", "id", "left", "top", "width", "height", "flag", "class"]], []
    for clip in clips:
        frames, boxes = [], []
        for index in SAMPLE_FRAMES:
            name = f"{clip.camera}-{index:03}.jpg"
            Image.fromarray(clip.frames[index]).save(SAMPLE / name, quality=88, subsampling=0)
            frames.append(np.asarray(Image.open(SAMPLE / name).convert("RGB")))
            boxes.append(clip.boxes[index])
            for left, top, width, height, kind, flag, identity in clip.boxes[index]:
                rows.append([name, clip.camera, int(identity), f"{left:.1f}", f"{top:.1f}", f"{width:.1f}", f"{height:.1f}",
                             int(flag), int(kind)])
        read.append(city_data.Clip(clip.city, clip.camera, np.stack(frames), boxes))
    with open(SAMPLE / "truth.csv", "w", newline="") as target:
        csv.writer(target, lineterminator="\n").writerows(rows)
    return read


def table(results):
    lines = ["| detector | picture | weights | 10^6 operations | ms | average precision | precision | recall | at a score of |",
             "|---|---|---|---|---|---|---|---|---|"]
    for name, it in results["detectors"].items():
        low, high = it["interval"]
        lines.append(f"| `{name}` | {it['input']} | {it['parameters']:,} | {it['flops'] / 1e6:,.1f} | {it['ms']:.2f} | "
                     f"{it['average_precision_50']:.3f} ({low:.3f} to {high:.3f}) | {it['precision']:.3f} | {it['recall']:.3f} | "
                     f"{it['threshold']:.2f} |")
    lines += ["", "| embedding | picture | weights | 10^6 operations | ms | rank 1 | mean average precision |",
              "|---|---|---|---|---|---|---|"]
    for name, it in results["embeddings"].items():
        lines.append(f"| `{name}` | {it['input']} | {it['parameters']:,} | {it['flops'] / 1e6:,.1f} | {it['ms']:.3f} | "
                     f"{it['rank_1']:.3f} | {it['mean_average_precision']:.3f} |")
    return "\n".join(lines)


TEXT = """# How good the vehicle models are

Measured by `models/training/evaluate_city.py` on the clips of `examples/aicity/data` (seed 3004; no model has learned from
that city, and no threshold was chosen by it), with ONNX Runtime, one thread, one picture at a time; ms is the least
processor time of 15 runs. The manifests have the same measures on the validation cities, by
which thresholds were chosen.

{table}

- Average precision at an overlap of one half, whatever the class, on every {every}th frame: {frames} frames with {boxes}
  boxes; the interval is the middle 95 % over frames drawn with replacement. Vehicles of flag 0 (less than 40 % visible,
  or less than 14 pixels wide or high) count neither way.
- Rank 1 and mean average precision of an embedding: each of {queries} crops of the truth is looked for among the crops of
  the other cameras, {crops} in all.
- The detectors learned from 10,000 frames of 80 cities, 40 times each, the embeddings from 91,097 crops of 6,985 vehicles, 14 times each; several
  of the twelve cameras of a group see each of them (`generate_looks.py`). With 16 processors and an H200 that took 13 minutes, 4 of them for rendering.
- What counts as hardly visible was settled after a first medium detector was measured on the validation cities
  (from less than 25 % and 10 pixels to 40 % and 14); a part of what came after follows from that.
- What the whole workflow makes of them is measured as IDF1, in the example.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--also", type=pathlib.Path, nargs="*", default=[], help="manifests of further embeddings")
    options = parser.parse_args()
    clips = city_data.clips_of(CLIPS, keep=False)
    frames = [(clip, index) for clip in clips for index in range(0, len(clip.frames), EVERY)]
    pictures, truth = [clip.frames[index] for clip, index in frames], [clip.boxes[index] for clip, index in frames]
    crops = crops_of(clips, every=EVERY)
    sample = write_sample(clips)
    sample_pictures = [frame for clip in sample for frame in clip.frames]
    sample_truth = [boxes for clip in sample for boxes in clip.boxes]
    sample_crops = crops_of(sample, fewest=1)
    results = {"detectors": {}, "embeddings": {}}
    expected = [["model", "measure", "value"]]
    paths = [FOLDER / f"{kind}-{size}.yaml" for kind in ("vehicles", "appearance") for size in SIZES]
    for path in [p for p in paths if p.exists()] + options.also:
        model = runner.Model(path)
        shape = model.manifest["inputs"][0]["shape"]
        facts = {"input": f"{shape[3]}x{shape[2]}", "parameters": model.manifest["parameters"], "flops": model.flops,
                 "ms": round(cost(model), 3)}
        if model.manifest["outputs"][0]["name"] == "boxes":
            results["detectors"][model.name] = {**facts, **detector_figures(model, pictures, truth)}
            found = detections(model, sample_pictures, decoding(model)["threshold"])
            value = detection_metric.average_precision(found, sample_truth)
            expected.append([model.name, "average_precision_50", f"{value:.4f}"])
        else:
            results["embeddings"][model.name] = {**facts, **appearance_figures(model, crops)}
            value = appearance_figures(model, sample_crops)["mean_average_precision"]
            expected.append([model.name, "mean_average_precision", f"{value:.4f}"])
        training_run.log(f"{model.name}: {expected[-1]}")
    with open(SAMPLE / "expected.csv", "w", newline="") as target:
        csv.writer(target, lineterminator="\n").writerows(expected)
    (FOLDER / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    one = types.SimpleNamespace(**next(iter(results["detectors"].values())))
    other = types.SimpleNamespace(**next(iter(results["embeddings"].values())))
    (FOLDER / "RESULTS.md").write_text(TEXT.format(table=table(results), every=EVERY, frames=one.frames, boxes=one.boxes,
                                                   queries=other.queries, crops=other.crops))


if __name__ == "__main__":
    main()
