"""Measures aggregators of training jobs on this machine: right parameters under moves, the stall of a move, packing, and stragglers.

Parts (`--only`, default all):

    exact      every tensor moves again as soon as it has moved, in steps long enough for a move; the parameters are compared with those of one process, bit by bit
    stall      models with published sizes, one of `--scale` parts: exchanges with and without moves of all tensors, beside
               a pause with a checkpoint in which the job ends and begins again
    packing    jobs shaped like VGG19, and like AlexNet, first each on two aggregators of its own, then on shared ones: aggregators, and loss of speed
    straggler  two jobs on one aggregator; a worker of one is late in each tenth step: the other one's iterations
    calls      time of a step by the bytes of a job, for the cost of the transport

Workers are threads of one process for each job, and computing is sleeping, so that a small machine can have many of them. All traffic is through
the transport service.

    python3 benches/experiments/aggregation.py --binary target/release/tidemill --out docs/benchmarks
    python3 benches/experiments/aggregation.py --binary target/debug/tidemill --quick
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import aggregation_page
import two_racks

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SHAPES = ["alexnet", "vgg19", "awd-lm", "bert"]


def percentile(values, part):
    ordered = sorted(values)
    return ordered[max(0, -(-int(len(ordered) * part * 1000) // 1000) - 1)] if ordered else None


def spread(values):
    if not values:
        return None
    return {"p50": round(statistics.median(values), 3), "p99": round(percentile(values, 0.99), 3), "most": round(max(values), 3), "of": len(values)}


class Service:
    """A transport service and a master, in a folder of their own."""

    def __init__(self, binary, *arguments):
        self.binary, self.arguments = binary, arguments

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tidemill-aggregation-"))
        self.socket = self.folder / "net.sock"
        self.log = open(self.folder / "log", "w", encoding="utf-8")
        self.processes = []
        self.start("net", "serve")
        self.until("the transport service", lambda: self.socket.exists())
        self.start("agg", "serve", *self.arguments)
        self.until("the master", lambda: self.run("jobs", check=False).returncode == 0)
        return self

    def start(self, *words):
        command = [self.binary, *words, "--socket", str(self.socket)]
        self.processes.append(subprocess.Popen(command, stdout=self.log, stderr=self.log))

    def command(self, *words):
        return [str(self.binary), "agg", *words, "--socket", str(self.socket)]

    def run(self, *words, check=True):
        return subprocess.run(self.command(*words), check=check, capture_output=True, text=True)

    def map(self):
        return json.loads(self.run("map", "--output", "json").stdout)

    def bench(self, job, *words):
        command = self.command("bench", "--job", job, "--output", "json", *map(str, words))
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def until(self, what, is_so, seconds=60):
        end = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > end:
                raise SystemExit(f"{what} has not come; log: {(self.folder / 'log').read_text()}")
            time.sleep(0.02)

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait()
        self.log.close()
        shutil.rmtree(self.folder)


def ended(process):
    out, err = process.communicate()
    if process.returncode:
        raise SystemExit(f"a job ended with {process.returncode}: {err or out}")
    return json.loads(out)


def exact(options):
    rows = []
    for numbers in ["fixed", "f32", "f16"]:
        with Service(options.binary, "--aggregators", "2") as service:
            report = ended(service.bench("exact", "--shape", "alexnet", "--scale", 1000, "--numbers", numbers, "--rule", "adam",
                                         "--steps", options.steps, "--compute", "300ms", "--migrate-every", 1))
        rounds = sum(1 for moved in report["moved"] if moved)
        rows.append({"numbers": numbers, "steps": len(report["moved"]), "tensors": report["tensors"], "moved": sum(report["moved"]),
                     "rounds_with_moves": rounds, "same_bits": report["digest"] == report["expected_digest"]})
        print("exact", json.dumps(rows[-1]), flush=True)
    return rows


def stall(options):
    rows = []
    for shape in SHAPES:
        base = ["--shape", shape, "--scale", options.scale, "--steps", options.steps, "--compute", options.compute, "--no-check"]
        row = {"model": shape, "scale": options.scale}
        with Service(options.binary, "--aggregators", "2") as service:
            moving = ended(service.bench("moving", *base, "--migrate-every", 5))
        with Service(options.binary, "--aggregators", "2") as service:
            pausing = ended(service.bench("pausing", *base, "--pause-every", max(5, options.steps // 5)))
        with Service(options.binary, "--aggregators", "2") as service:
            plain = ended(service.bench("plain", *base))
        # The first steps open connections.
        pairs = list(zip(moving["exchanges_ms"], moving["moved"]))[3:]
        still = spread(plain["exchanges_ms"][3:])
        # A round in which replies name the new aggregator, and the one after it, in which the state may have to come first.
        moves = [place for place, (_, moved) in enumerate(pairs) if moved]
        touched = sorted({place + more for place in moves for more in (0, 1) if place + more < len(pairs)})
        excess = sum(pairs[place][0] - still["p50"] for place in touched)
        whole = sum(moved for _, moved in pairs) / moving["tensors"]
        row.update(tensors=moving["tensors"], bytes=moving["gradient_bytes"], exchange_ms=still,
                   exchange_with_moves_ms=spread([pairs[place][0] for place in touched]), whole_moves=round(whole, 1),
                   stall_of_a_whole_move_ms=round(excess / whole, 3) if whole else None, pause_ms=spread(pausing["pauses_ms"]))
        rows.append(row)
        print("stall", json.dumps(row), flush=True)
    return rows


def packing(options):
    return [packed(options, shape) for shape in ["vgg19", "alexnet"]]


def packed(options, shape):
    jobs = [f"{shape}-{number}" for number in range(options.jobs)]
    words = ["--shape", shape, "--scale", options.scale * 2, "--compute", options.iteration, "--no-check"]
    # Each job as its user would have it: two servers of its own.
    with Service(options.binary, "--aggregators", "2") as service:
        alone = ended(service.bench("alone", *words, "--steps", options.steps))
    with Service(options.binary, "--profile-iterations", "5", "--monitor-iterations", str(max(10, options.steps // 3))) as service:
        running, most = [], 0
        for job in jobs:
            running.append(service.bench(job, *words, "--steps", options.steps * 3))
            # A job that is measured while another one begins would be measured wrongly.
            service.until(f"{job} is placed", lambda: any(one["name"] == job and one["stage"] != "profiled" for one in service.map()["jobs"]), 300)
        service.until("nothing moves", lambda: not any(tensor["moves_to"] for one in service.map()["jobs"] for tensor in one["tensors"]), 120)
        shared = service.map()
        most = len(shared["aggregators"])
        reports = [ended(process) for process in running]
        service.until("aggregators end", lambda: not service.map()["aggregators"])
    before = statistics.median(alone["iterations_ms"][3:])
    losses = []
    for report in reports:
        # While all of them run: the last one begins when the others have made a third of their steps, or less.
        middle = report["iterations_ms"][len(report["iterations_ms"]) // 3: -len(report["iterations_ms"]) // 4]
        losses.append(round(1 - before / statistics.median(middle), 4))
    row = {"model": shape, "jobs": len(jobs), "servers_alone": 2 * len(jobs), "aggregators": most, "iteration_alone_ms": round(before, 2), "losses": losses,
           "expected_losses": [one["expected_loss"] for one in shared["jobs"]], "stages": [one["stage"] for one in shared["jobs"]]}
    print("packing", json.dumps(row), flush=True)
    return row


def straggler(options):
    words = ["--shape", "alexnet", "--scale", options.scale * 10, "--steps", options.steps * 2, "--compute", "20ms", "--no-check"]
    rows = []
    for late in ["0s", "200ms"]:
        with Service(options.binary, "--aggregators", "1") as service:
            first = service.bench("late", *words, "--straggler", late)
            other = ended(service.bench("other", *words))
            slow = ended(first)
        rows.append({"late": late, "late_job_ms": spread(slow["iterations_ms"][3:]), "other_job_ms": spread(other["iterations_ms"][3:])})
        print("straggler", json.dumps(rows[-1]), flush=True)
    return rows


def calls(options):
    rows = []
    for scale in [1000, 100, 10]:
        with Service(options.binary, "--aggregators", "1") as service:
            report = ended(service.bench("calls", "--shape", "vgg19", "--scale", scale, "--steps", options.steps, "--workers", 1, "--no-check"))
        times = spread(report["exchanges_ms"][3:])
        # To the aggregator and back.
        rate = 2 * report["gradient_bytes"] / times["p50"] / 1e6
        rows.append({"tensors": report["tensors"], "bytes": report["gradient_bytes"], "step_ms": times, "gigabytes_per_second": round(rate, 3)})
        print("calls", json.dumps(rows[-1]), flush=True)
    return rows


PARTS = {"exact": exact, "stall": stall, "packing": packing, "straggler": straggler, "calls": calls}


def commit():
    done = subprocess.run(["git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=REPOSITORY / "target/release/tidemill", type=pathlib.Path)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated")
    parser.add_argument("--scale", type=int, default=10, help="one of so many parts of the published parameters")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=4, help="of the part packing")
    parser.add_argument("--compute", default="100ms", help="of a step, in the part stall")
    parser.add_argument("--iteration", default="600ms", help="of a step, in the part packing")
    parser.add_argument("--quick", action="store_true", help="small: whether it works, not for figures")
    parser.add_argument("--out", type=pathlib.Path, help="folder for aggregation.json and aggregation.md; parts that are not measured stay")
    options = parser.parse_args()
    if options.quick:
        options.scale, options.steps, options.jobs, options.compute, options.iteration = 100, 20, 2, "20ms", "60ms"
    options.binary = options.binary.resolve()
    file = options.out / "aggregation.json" if options.out else None
    document = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {"parts": {}}
    for part in options.only or PARTS:
        begun, facts = time.monotonic(), two_racks.machine()
        rows = PARTS[part](options)
        document["parts"][part] = {
            "rows": rows, "date": datetime.date.today().isoformat(), "machine": facts, "load_at_end": os.getloadavg()[0], "commit": commit(),
            "build": options.binary.parent.name, "minutes": (time.monotonic() - begun) / 60, "quick": options.quick,
        }
        if file:
            file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            file.with_suffix(".md").write_text(aggregation_page.page(document["parts"]), encoding="utf-8")
    return 0 if all(row["same_bits"] and row["moved"] for row in document["parts"].get("exact", {"rows": []})["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
