#!/usr/bin/env python3
"""What benches/experiments/prediction.sh needs.

    python3 benches/experiments/prediction.py repeat FROM TO TIMES    the pairs of FROM several times, with keys of their own, in TO
    python3 benches/experiments/prediction.py table RUN.json...       predicted beside measured
"""
import csv
import json
import pathlib
import shutil
import sys

SHOWN = ("rate", "latency_mean", "latency_p90", "latency_p99", "accuracy", "traffic", "cost_network", "utilization")


def repeat(source, target, times):
    """Copies of the files, and the truth of each."""
    with open(source / "truth.csv", encoding="utf-8") as file:
        truth = list(csv.DictReader(file))
    with open(target / "truth.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, truth[0].keys(), lineterminator="\n")
        writer.writeheader()
        for again in range(times):
            for row in truth:
                key = f"{again:03d}{row['key']}"
                writer.writerow({**row, "key": key})
                for folder, suffix in (("images", "jpg"), ("questions", "wav")):
                    (target / folder).mkdir(exist_ok=True)
                    shutil.copyfile(source / folder / f"{row['key']}.{suffix}", target / folder / f"{key}.{suffix}")


def table(reports):
    """A line for each quantity of each run."""
    print(f"{'run':12} {'quantity':14} {'of':20} {'predicted':>12} {'measured':>12} {'difference':>10}  verdict")
    for path in reports:
        if not path.exists():
            print(f"{path.stem:12} no report: see {path.with_suffix('.txt')}")
            continue
        emulation = json.loads(path.read_text(encoding="utf-8"))["emulation"]
        for row in emulation["comparison"]:
            if row["quantity"] in SHOWN:
                values = [f"{v:12.2f}" if v is not None else f"{'-':>12}" for v in (row["predicted"], row["measured"])]
                percent = row["difference_percent"]
                difference = "-" if percent is None else f"{percent:+.1f} %"
                print(f"{path.stem:12} {row['quantity']:14} {row['of']:20} {' '.join(values)} {difference:>10}  {row['verdict']}")
        print(f"{path.stem:12} {'dilation':14} {emulation['dilation']}")


def main():
    """Does what is asked."""
    if len(sys.argv) == 5 and sys.argv[1] == "repeat":
        repeat(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4]))
    elif len(sys.argv) > 2 and sys.argv[1] == "table":
        table([pathlib.Path(path) for path in sys.argv[2:]])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
