"""What a run of examples/aicity found: python3 scripts/aicity_summary.py [REPORT.json] FOLDER

FOLDER has vehicles.jsonl and roads.csv of the run. Without the report of the run, which runs of a cluster do not write, nothing is said of how
good it was.
"""

import collections
import csv
import json
import pathlib
import sys


def standing(rows):
    """The rows that stay when corrections are added up."""
    counts = collections.Counter()
    for row in rows:
        change = int(row.pop("_change", 1))
        counts[json.dumps(row, sort_keys=True)] += change
    return [json.loads(row) for row, count in counts.items() if count > 0]


def accuracy(report):
    """Prints how good it was."""
    judged = next(sink for sink in report["sinks"] if sink.get("accuracy_percent") is not None)
    low, high = judged["accuracy_interval_percent"]
    print(f"IDF1 over all cameras: {judged['accuracy_percent']:.1f} % ({low:.1f} to {high:.1f})")
    if "tracks" in judged:
        of = judged["tracks"]
        print(f"IDP {of['idp_percent']:.1f} %, IDR {of['idr_percent']:.1f} %; the tracks themselves: MOTA {of['mota_percent']:.1f} %, HOTA {of['hota_percent']:.1f} %")


def main():
    *reports, folder = map(pathlib.Path, sys.argv[1:])
    for report in reports:
        accuracy(json.loads(report.read_text()))

    with open(folder / "vehicles.jsonl") as file:
        tracks = standing(json.loads(line) for line in file)
    cameras = collections.defaultdict(set)
    for track in tracks:
        cameras[track["vehicle"]].add(track["camera"])
    several = sum(len(seen) > 1 for seen in cameras.values())
    print(f"{len(tracks)} tracks are {len(cameras)} vehicles, {several} of which several cameras saw")

    with open(folder / "roads.csv", newline="") as file:
        windows = standing(csv.DictReader(file))
    print("\nvehicles on each road in the busiest minute")
    best = {}
    for window in windows:
        key = (int(window["vehicles"]), -int(window["window_start"]))
        best[window["road"]] = max(best.get(window["road"], key), key)
    for road, (vehicles, start) in sorted(best.items()):
        begin = -start / 1000
        print(f"  {road:10} {vehicles:4}   from {begin:.0f} s to {begin + 60:.0f} s")


main()
