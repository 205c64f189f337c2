#!/usr/bin/env python3
"""How many links between tracks of different cameras are right.

    benches/experiments/links_judged.py TRUTH ROWS

TRUTH is a folder of tracks `CAMERA.txt` in the text format of MOTChallenge with the same identities in all cameras, ROWS what a sink behind
`associate` wrote (JSONL with the columns camera, track, vehicle, start and path). A track is of the vehicle whose boxes it covers most often
by more than a half; a link, from one track of a vehicle to its next, is right if both are of the same one.
"""
import collections
import csv
import json
import pathlib
import sys


def overlap(a, b):
    """Intersection over union of two boxes of left, top, width and height."""
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    high = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    both = max(wide, 0) * max(high, 0)
    return both / (a[2] * a[3] + b[2] * b[3] - both)


def truth_of(folder):
    """Boxes by camera and frame: (identity, box)."""
    boxes = collections.defaultdict(list)
    for file in folder.glob("*.txt"):
        with file.open(newline="") as source:
            for row in csv.reader(source):
                boxes[file.stem, int(row[0])].append((row[1], [float(value) for value in row[2:6]]))
    return boxes


def whose(camera, path, truth):
    """The identity that a track covers most often; none: it covers none."""
    votes = collections.Counter()
    for step in filter(None, path.split(";")):
        frame, *box = step.split(",")
        box = [float(value) for value in box]
        # Paths count frames from 0.
        share, identity = max(((overlap(box, of), name) for name, of in truth[camera, int(frame) + 1]), default=(0, None))
        if share > 0.5:
            votes[identity] += 1
    return votes.most_common(1)[0][0] if votes else None


def judged(folder, rows):
    """Links, right ones, and vehicles that were named."""
    truth = truth_of(folder)
    counts = collections.Counter()
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        counts[tuple(row[name] for name in ("vehicle", "start", "camera", "track", "path"))] += row.get("_change", 1)
    vehicles = collections.defaultdict(list)
    for (vehicle, start, camera, _, path), count in counts.items():
        if count > 0:
            vehicles[vehicle].append((start, camera, whose(camera, path, truth)))
    links = right = 0
    for tracks in vehicles.values():
        tracks.sort(key=lambda track: track[:2])
        for (*_, before), (*_, behind) in zip(tracks, tracks[1:]):
            links += 1
            right += before is not None and before == behind
    return links, right, len(vehicles)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print("{} links, {} right, {} vehicles".format(*judged(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))))
