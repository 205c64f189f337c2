#!/usr/bin/env python3
"""Vehicles followed across cameras as a loop in Python: OpenCV decodes, ONNX Runtime runs the models, on one thread.

    python3 -m venv target/vehicles && target/vehicles/bin/pip install opencv-python-headless onnxruntime scipy pyyaml supervision==0.26.1

Started by the bench `vehicle-loop`: `opencv_loop.py own|supervision TASK`, the task as JSON. With `own` boxes are followed by
overlap and appearance, assigned by scipy; with `supervision` by the ByteTrack of that package, as its guides say. Tracks of
different cameras are linked as the product does it: of all pairs that look alike, the best first.
"""

import json
import pathlib
import sys
import time

import cv2
import numpy
import onnxruntime
import yaml
from scipy.optimize import linear_sum_assignment

PATIENCE = 30  # frames
FIRST_SCORE = 0.7
LEAST_OVERLAP = 0.2


class Model:
    """A model with the size of its pictures."""

    def __init__(self, manifest):
        manifest = pathlib.Path(manifest)
        written = yaml.safe_load(manifest.read_text())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        file = str(manifest.parent / written["file"])
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name
        _, _, self.height, self.width = written["inputs"][0]["shape"]
        steps = written["outputs"][0]["postprocess"]
        self.boxes = next((step["decode_boxes"] for step in steps if "decode_boxes" in step), None)
        self.run([numpy.zeros((self.height, self.width, 3), numpy.uint8)])

    def run(self, pictures):
        resized = [cv2.resize(picture, (self.width, self.height)) for picture in pictures]
        batch = numpy.ascontiguousarray(numpy.stack(resized).transpose(0, 3, 1, 2))
        return self.session.run(None, {self.input: batch})[0]


def decode(values, settings, width, height):
    """Boxes (left, top, right, bottom), scores and classes of a picture: the best of those that overlap."""
    values = values[values[:, 4] >= settings["threshold"]]
    size = values[:, 2:4] * (width, height)
    corner = values[:, :2] * (width, height) - size / 2
    kept = cv2.dnn.NMSBoxes(
        numpy.hstack([corner, size]).tolist(), values[:, 4].tolist(), settings["threshold"], settings["iou"]
    )
    kept = numpy.asarray(kept, int).reshape(-1)
    low = numpy.clip(corner[kept], 0, (width, height))
    high = numpy.clip(corner[kept] + size[kept], 0, (width, height))
    return numpy.hstack([low, high]), values[kept, 4], values[kept, 5].astype(int)


def overlaps(a, b):
    """Intersection over union of each box with each."""
    low = numpy.maximum(a[:, None, :2], b[None, :, :2])
    high = numpy.minimum(a[:, None, 2:], b[None, :, 2:])
    common = numpy.clip(high - low, 0, None).prod(2)
    area = lambda boxes: (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return common / numpy.maximum(area(a)[:, None] + area(b)[None] - common, 1e-9)


class OwnTracker:
    """Boxes belong to the track whose last box they overlap and that looks alike."""

    def __init__(self):
        self.live, self.number = {}, 0

    def step(self, frame, boxes, scores, _classes, embeddings):
        self.live = {n: live for n, live in self.live.items() if frame - live[2] <= PATIENCE}
        numbers = [None] * len(boxes)
        if self.live and len(boxes):
            known = list(self.live)
            overlap = overlaps(numpy.array([self.live[n][0] for n in known]), boxes)
            alike = numpy.array([self.live[n][1] for n in known]) @ embeddings.T
            cost = 1 - overlap - 0.5 * alike * (overlap > 0)
            for row, column in zip(*linear_sum_assignment(cost)):
                if overlap[row, column] >= LEAST_OVERLAP:
                    numbers[column] = known[row]
        for at, number in enumerate(numbers):
            if number is None and scores[at] >= FIRST_SCORE:
                self.number += 1
                numbers[at] = self.number
            if numbers[at] is not None:
                self.live[numbers[at]] = (boxes[at], embeddings[at], frame)
        return numbers


class Supervision:
    """ByteTrack of the package supervision."""

    def __init__(self):
        import supervision

        self.package = supervision
        self.tracker = supervision.ByteTrack(lost_track_buffer=PATIENCE, frame_rate=10)

    def step(self, _frame, boxes, scores, classes, _embeddings):
        found = self.package.Detections(xyxy=boxes.astype(numpy.float32).reshape(-1, 4), confidence=scores, class_id=classes)
        found.data["at"] = numpy.arange(len(boxes))
        numbers = [None] * len(boxes)
        followed = self.tracker.update_with_detections(found)
        if len(followed):
            for at, number in zip(followed.data["at"], followed.tracker_id):
                numbers[int(at)] = int(number)
        return numbers


def follow(clip, detector, appearance, batches, tracker, tracks, took):
    """All tracks of a camera, and how many frames it has; `took`: seconds from when each was read until it was looked at."""
    video = cv2.VideoCapture(str(clip))
    count = 0
    while True:
        frames, read = [], []
        while len(frames) < batches[0]:
            there, frame = video.read()
            if not there:
                break
            read.append(time.monotonic())
            frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
        if not frames:
            return count
        height, width = frames[0].shape[:2]
        found = [decode(values, detector.boxes, width, height) for values in detector.run(frames)]
        parts = []
        for frame, (boxes, _, _) in zip(frames, found):
            for left, top, right, bottom in boxes:
                left, top = int(left), int(top)
                right, bottom = max(int(numpy.ceil(right)), left + 1), max(int(numpy.ceil(bottom)), top + 1)
                parts.append(frame[top:bottom, left:right])
        embeddings = [appearance.run(parts[at : at + batches[1]]) for at in range(0, len(parts), batches[1])]
        embeddings = numpy.vstack(embeddings) if embeddings else numpy.zeros((0, 1), numpy.float32)
        first = 0
        for boxes, scores, classes in found:
            own = embeddings[first : first + len(boxes)]
            first += len(boxes)
            for at, number in enumerate(tracker.step(count, boxes, scores, classes, own)):
                if number is not None:
                    name = f"{clip.stem}/{number}"
                    track = tracks.setdefault(name, [clip.stem, count, count, numpy.zeros(own.shape[1])])
                    track[2] = count
                    track[3] += scores[at] * own[at]
            count += 1
        looked_at = time.monotonic()
        took.extend(looked_at - at for at in read)


def link(tracks, task):
    """The vehicle of each track: the name of the first track of its chain."""
    names = sorted(tracks, key=lambda name: (tracks[name][1], name))
    if not names:
        return {}
    looks = numpy.array([tracks[name][3] for name in names])
    looks /= numpy.maximum(numpy.linalg.norm(looks, axis=1, keepdims=True), 1e-9)
    alike = looks @ looks.T
    pairs = []
    for a, before in enumerate(names):
        # Only those that begin later, so that no chain is a circle.
        for b, behind in enumerate(names[a + 1 :], a + 1):
            gap = (tracks[behind][1] - tracks[before][2]) * task["between_frames"]
            if tracks[before][0] != tracks[behind][0] and 0 <= gap <= task["within"] and alike[a, b] >= task["likeness"]:
                pairs.append((-alike[a, b], before, behind))
    follows, followed = {}, set()
    for _, before, behind in sorted(pairs):
        if before not in followed and behind not in follows:
            followed.add(before)
            follows[behind] = before
    vehicles = {}
    for name in names:
        first = name
        while first in follows:
            first = follows[first]
        vehicles[name] = first
    return vehicles


def main():
    kind, task = sys.argv[1], json.loads(sys.argv[2])
    cv2.setNumThreads(1)
    detector, appearance = Model(task["detector"]), Model(task["appearance"])
    started = time.monotonic()
    frames, tracks, took = 0, {}, []
    for clip in sorted(pathlib.Path(task["clips"]).iterdir()):
        tracker = OwnTracker() if kind == "own" else Supervision()
        frames += follow(clip, detector, appearance, task["batches"], tracker, tracks, took)
    vehicles = link(tracks, task)
    # Beside that of the loop in Rust, which Tidemill is compared with line by line.
    out = pathlib.Path(task["out"]).with_suffix(".python.txt")
    out.write_text("".join(f"{track} {vehicle}\n" for track, vehicle in sorted(vehicles.items())))
    p99 = 1e3 * sorted(took)[-(-len(took) * 99 // 100) - 1]
    outcome = {"frames": frames, "seconds": time.monotonic() - started, "p99_ms": p99}
    pathlib.Path(task["outcome"]).write_text(json.dumps(outcome))


main()
