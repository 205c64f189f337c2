"""How far the detectors of this example agree: `python examples/traffic/agreement.py` (needs numpy, onnxruntime, Pillow).

The clips have no ground truth, so this is no accuracy: it counts how often a detector and the largest one, YOLOv4-tiny at
608x608, find the same box with the same class (F1; overlap 0.5 or more; scores from 0.3 on). Errors that both make
count as agreement.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import onnxruntime
from PIL import Image

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "models" / "training"))
import detection_metric  # noqa: E402
from fetch_clip import ffmpeg  # noqa: E402

LARGEST = "yolov4-tiny-608"
DETECTORS = {"yolov2-tiny-416": 416, "yolov4-tiny-320": 320, "yolov4-tiny-416": 416, LARGEST: 608}
CLIPS = {"highway": ("highway.mp4", 854, 480, 10), "street": ("cameras/street.avi", 768, 576, 20)}  # of so many frames one
LEAST_SCORE = 0.3


def cache():
    named = os.environ.get("TIDEMILL_CACHE")
    if named:
        return pathlib.Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "tidemill"


def frames(clip, width, height, every):
    done = subprocess.run([ffmpeg(), "-v", "error", "-i", str(clip), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
                          stdout=subprocess.PIPE, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)[::every]


def boxes(name, side, pictures):
    """What a detector finds, and the processor time of the bare model for a picture, the median, in milliseconds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = cache() / "models" / name / f"{name}.onnx"
    if not path.exists():
        sys.exit(f"{path} is not there: tidemill models fetch {name}")
    session = onnxruntime.InferenceSession(str(path), options)
    found, times = [], []
    for picture in pictures:
        pixels = np.asarray(Image.fromarray(picture).resize((side, side), Image.BILINEAR)).transpose(2, 0, 1)[None]
        start = time.process_time()
        rows = session.run(None, {"image": np.ascontiguousarray(pixels)})[0][0]
        times.append(time.process_time() - start)
        found.append(detection_metric.kept(rows, (picture.shape[1], picture.shape[0]), LEAST_SCORE))
    return found, 1000 * float(np.median(times))


def same(one, other):
    """How many boxes of a picture both found: the best of one first, each takes what it overlaps most."""
    count = 0
    for kind in np.unique(one[:, 5]):
        mine, theirs = one[one[:, 5] == kind], other[other[:, 5] == kind]
        shared = detection_metric.overlaps(mine, theirs)
        for row in shared:
            if len(row) and row.max() >= detection_metric.OVERLAP:
                shared[:, row.argmax()] = 0
                count += 1
    return count


def f1(one, other, chosen):
    both = sum(same(one[i], other[i]) for i in chosen)
    return 2 * both / max(1, sum(len(one[i]) + len(other[i]) for i in chosen))


def compare(clip, width, height, every):
    pictures = frames(clip, width, height, every)
    found, times = {}, {}
    for name, side in DETECTORS.items():
        found[name], times[name] = boxes(name, side, pictures)
    rng = np.random.default_rng(0)
    print(f"{clip.name}, {len(pictures)} frames; agreement with {LARGEST}")
    for name in DETECTORS:
        drawn = [f1(found[name], found[LARGEST], rng.integers(len(pictures), size=len(pictures))) for _ in range(200)]
        low, high = np.quantile(drawn, [0.025, 0.975])
        mean = np.mean([len(rows) for rows in found[name]])
        print(f"{name}: F1 {f1(found[name], found[LARGEST], range(len(pictures))):.4f} ({low:.4f} to {high:.4f}), "
              f"{mean:.1f} boxes a frame, {times[name]:.0f} ms of processor time a frame")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=HERE / "data", help="folder of the clips (default: data)")
    options = parser.parse_args()
    for name, (path, *shape) in CLIPS.items():
        clip = options.data / path
        if clip.exists():
            compare(clip, *shape)
        else:
            print(f"no {name}: {clip} is not there: python3 examples/traffic/fetch_clip.py", file=sys.stderr)


if __name__ == "__main__":
    main()
