#!/usr/bin/env python3
"""Lists the ways between cameras as `transitions` of the operator `associate`.

    scripts/camera_ways.py --picture 480x288 --rate 10 SEEN [SEEN ...]

SEEN is what passed the cameras: a JSONL file that a sink behind `associate` wrote (columns camera, vehicle, start, end and path), best of a run
with a high `likeness`, so that most of what is linked is right; or a folder of tracks `CAMERA.txt` in the text format of MOTChallenge with the
same identities in all cameras. A vehicle that is seen by one camera after another has gone a way: from the part of the picture where its last
box is to the part where its first box is. Ways that came up less than `--least` times are left out: those are mistakes, mostly.
"""

import argparse
import collections
import csv
import json
import math
import pathlib
import sys


def in_rows(path):
    """Sightings of a JSONL file: vehicle, camera, first and last second, first and last box. Rows that were taken back are left out."""
    counts = collections.Counter()
    for line in path.read_text().splitlines():
        row = json.loads(line)
        change = row.get("_change", 1)
        counts[tuple(row[name] for name in ("vehicle", "camera", "start", "end", "path"))] += change
    for (vehicle, camera, start, end, steps), count in counts.items():
        boxes = [[float(value) for value in step.split(",")[1:]] for step in steps.split(";") if step]
        if count > 0 and boxes:
            yield str(vehicle), camera, start / 1e3, end / 1e3, boxes[0], boxes[-1]


def in_tracks(folder, rate):
    """The same of a folder of tracks."""
    for path in sorted(folder.glob("*.txt")):
        tracks = collections.defaultdict(list)
        with path.open(newline="") as source:
            for row in csv.reader(source):
                if float(row[6]) > 0:
                    tracks[row[1]].append((int(row[0]), [float(value) for value in row[2:6]]))
        for vehicle, boxes in tracks.items():
            boxes.sort()
            yield vehicle, path.stem, boxes[0][0] / rate, boxes[-1][0] / rate, boxes[0][1], boxes[-1][1]


def ways(sightings, cell):
    """Seconds between two cameras, by where a vehicle left the one and entered the other."""
    by_vehicle = collections.defaultdict(list)
    for vehicle, camera, start, end, first, last in sightings:
        by_vehicle[vehicle].append((start, end, camera, cell(first), cell(last)))
    found = collections.defaultdict(list)
    for seen in by_vehicle.values():
        seen.sort()
        for (_, end, before, _, leaves), (start, _, behind, enters, _) in zip(seen, seen[1:]):
            if before != behind and start >= end:
                found[before, leaves, behind, enters].append(start - end)
    return found


def pair(text):
    try:
        first, second = (int(part) for part in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two whole numbers with an x between, such as 480x288") from None
    return first, second


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seen", nargs="+", type=pathlib.Path, metavar="SEEN")
    parser.add_argument("--picture", type=pair, required=True, help="width and height of the pictures: 480x288")
    parser.add_argument("--parts", type=pair, default=(3, 2), help="into how many parts a picture is divided (default: 3x2)")
    parser.add_argument("--rate", type=float, default=10, help="frames per second of MOTChallenge files (default: %(default)s)")
    parser.add_argument("--least", type=int, default=2, help="how often a way has to come up (default: %(default)s)")
    options = parser.parse_args()
    (width, height), (columns, rows) = options.picture, options.parts

    def cell(box):
        left, top, wide, high = box
        column = min(max(int((left + wide / 2) * columns / width), 0), columns - 1)
        row = min(max(int((top + high / 2) * rows / height), 0), rows - 1)
        return column, row

    def area(part):
        column, row = part
        edges = [width * column // columns, height * row // rows, width * (column + 1) // columns, height * (row + 1) // rows]
        # What leaves a picture has its middle beyond the edge at times.
        edges = [-width if column == 0 else edges[0], -height if row == 0 else edges[1],
                 2 * width if column == columns - 1 else edges[2], 2 * height if row == rows - 1 else edges[3]]
        return [edges[0], edges[1], edges[2] - edges[0], edges[3] - edges[1]]

    found = collections.defaultdict(list)
    for seen in options.seen:
        try:
            sightings = list(in_tracks(seen, options.rate) if seen.is_dir() else in_rows(seen))
        except (OSError, ValueError, LookupError) as error:
            sys.exit(f"{seen} is neither such a folder nor such rows: {error!r}")
        for way, gaps in ways(sightings, cell).items():
            found[way] += gaps
    kept = {way: gaps for way, gaps in found.items() if len(gaps) >= options.least}
    if not kept:
        sys.exit(f"no way came up {options.least} times; {len(found)} came up less often")
    print("transitions:")
    for (before, leaves, behind, enters), gaps in sorted(kept.items()):
        # The next one may be quicker or slower.
        after, within = max(math.floor(min(gaps) * 0.75 - 1), 0), math.ceil(max(gaps) * 1.25 + 1)
        waits = f"after: {after}s, " if after else ""
        print(f"  - {{from: {before}, leaves: {area(leaves)}, to: {behind}, enters: {area(enters)}, "
              f"{waits}within: {within}s}} # {len(gaps)} times")
    print(f"{len(kept)} ways, {len(found) - len(kept)} that came up less than {options.least} times are left out", file=sys.stderr)


if __name__ == "__main__":
    main()
