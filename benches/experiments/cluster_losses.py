"""Measures how long a run of a cluster is without rows when a worker is lost, and until latency is as before.

A controller and four agents on this machine: a hub with the source and the sink, and three boxes with the stages of a model. A live stream of
records at a steady rate comes through a pipe. In each round `kill -9` ends the agent of a box, and with it its process of the run. The rows are read
from the file of the sink as they are written. Each row has the time when its record was sent, so latency is that of the records, with
all that waited.

    python3 benches/experiments/cluster_losses.py --binary target/debug/tidemill --rounds 10 --json losses.json
    python3 benches/experiments/cluster_losses.py --binary target/debug/tidemill --rounds 3 --survive 0   # without `survive` in the plan

`--silent` stops the processes of the box (SIGSTOP) in place of killing them: a machine that falls silent.
"""
import argparse
import bisect
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys
import threading
import time

from cluster_lab import Lab, Stuck, children

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = ROOT / "operators/inference/testdata"
BOXES = ["box-1", "box-2", "box-3"]
# Rows sent within this time make one figure of p95, seconds.
WINDOW = 1.0
# Latency is as before when p95 is at most twice as long, or longer by this at most, seconds.
MORE = 0.05

WORKFLOW = """version: 1
name: losses
sources: [{id: rows, kind: jsonl, journal: {}, options: {path: "PIPE", stream: until_end, columns: {n: int64, sent: float64, x: "tensor<float32>[4]"}}}]
operators: [{id: norm, kind: ml, input: rows, variants: [identity.yaml]}]
sinks: [{id: norms, kind: jsonl, input: norm, options: {path: out/norms.jsonl, columns: [n, sent]}}]
run: {tick: 20ms, checkpoint_every: 5}
checkpoint: {interval: INTERVAL}
"""


def plan(survive):
    shares = [0.34, 0.33, 0.33]
    lines = ["version: 1", "workflow: {name: losses}", "tick: 20ms", "checkpoint_every: 5"]
    if survive:
        lines.append(f"survive: {survive}")
    lines += ["workers:", "  - {id: hub-1, tier: hub, worker_type: small}"]
    lines += [f"  - {{id: {box}, tier: box, worker_type: small}}" for box in BOXES]
    lines += ["stages:", "  - {id: rows, operator: rows, worker: hub-1}", "  - {id: norms, operator: norms, worker: hub-1}"]
    lines += [
        f"  - {{id: norm@{box}, operator: norm, variant: identity, backend: rten, worker: {box}, share: {share}}}"
        for box, share in zip(BOXES, shares)
    ]
    lines.append("classes:")
    lines += [
        f"  - {{id: {number}, share: {share}, route: {{rows: rows, norm: norm@{box}, norms: norms}}}}"
        for number, (box, share) in enumerate(zip(BOXES, shares))
    ]
    lines.append("edges:")
    for box in BOXES:
        lines += [f"  - {{from: rows, to: norm@{box}}}", f"  - {{from: norm@{box}, to: norms}}"]
    return "\n".join(lines) + "\n"


class Sender(threading.Thread):
    """Writes a record into the pipe at each moment of a schedule."""

    def __init__(self, pipe, rate):
        super().__init__(daemon=True)
        self.pipe, self.rate, self.count = pipe, rate, 0
        self.is_over = threading.Event()

    def run(self):
        begun = time.monotonic()
        with open(self.pipe, "w", encoding="utf-8", buffering=1) as out:
            while not self.is_over.is_set():
                due = begun + self.count / self.rate
                time.sleep(max(0.0, due - time.monotonic()))
                # The time when it was due: a full pipe is latency, too.
                out.write(json.dumps({"n": self.count, "sent": due, "x": [self.count % 1000, 1, 2, 3]}) + "\n")
                self.count += 1


class Watcher(threading.Thread):
    """Notes when each row was in the file of the sink first. The file is cut back to a checkpoint when a plan changes."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.seen, self.arrived, self.sent, self.at = path, set(), [], [], 0
        self.is_over = threading.Event()

    def run(self):
        rest = b""
        while not self.is_over.wait(0.002):
            try:
                size = self.path.stat().st_size
            except OSError:
                continue
            if size < self.at:
                self.at, rest = 0, b""
            if size == self.at:
                continue
            with self.path.open("rb") as file:
                file.seek(self.at)
                read = file.read()
            now = time.monotonic()
            self.at += len(read)
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # it was cut while it was read
                if row["n"] not in self.seen:
                    self.seen.add(row["n"])
                    self.arrived.append(now)
                    self.sent.append(row["sent"])


def p95(values):
    return sorted(values)[max(0, -(-len(values) * 95 // 100) - 1)]


def latencies(watcher, begin, end):
    """Of the rows that were sent in this time and have arrived."""
    pairs = zip(list(watcher.sent), list(watcher.arrived))
    return [arrived - sent for sent, arrived in pairs if begin <= sent < end]


def judged(watcher, killed, until):
    """The longest time without a new row, and until p95 is back for a second, seconds: others may disturb the machine later."""
    before = p95(latencies(watcher, killed - 3, killed - 0.2))
    arrived = list(watcher.arrived)
    first = max(0, bisect.bisect_left(arrived, killed) - 1)
    window = [time for time in arrived[first:] if time <= until]
    gap, at = max((b - a, a) for a, b in zip(window, window[1:]))
    limit = max(before * 2, before + MORE)
    back, step = None, 0.05
    begin, course = killed, []
    while begin + WINDOW <= until - 0.5:
        found = latencies(watcher, begin, begin + WINDOW)
        if back is None or begin - killed < back + 1:
            if not found or p95(found) > limit:
                back = None
            elif back is None:
                back = begin - killed
        course.append(round(p95(found), 3) if found else None)
        begin += step
    return {"p95_before": before, "gap": gap, "gap_began": at - killed, "p95_back": back,
            "worst": max(latencies(watcher, killed - 1, until - 0.5)), "course": course[::10]}


def losses(lab, options):
    lab.start()
    folder = lab.folder / "files"
    folder.mkdir()
    pipe = folder / "rows.pipe"
    os.mkfifo(pipe, 0o600)
    held = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # its content stays while no process reads
    for file in ("identity.yaml", "identity.onnx"):
        shutil.copy(TESTDATA / file, folder / file)
    (folder / "workflow.yaml").write_text(WORKFLOW.replace("PIPE", str(pipe)).replace("INTERVAL", options.interval))
    (folder / "plan.yaml").write_text(plan(options.survive))
    sender = Sender(pipe, options.rate)
    sender.start()
    lab.submit(folder / "workflow.yaml", folder / "plan.yaml", "losses")
    watcher = Watcher(lab.folder / "w-hub-1/runs/losses/hub-1/out/norms.jsonl")
    watcher.start()
    lab.until("rows come", 60, lambda: len(watcher.arrived) > 5 * options.rate)
    rounds = []
    for number in range(options.rounds):
        box = BOXES[number % len(BOXES)]
        time.sleep(5)
        service = lab.services[box]
        killed = time.monotonic()
        stopped = []
        if options.silent:
            stopped = [service.process.pid, *children(service.process.pid)]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        else:
            service.kill(10_000)
        lab.until(f"rows come again without {box}", 60, lambda: watcher.arrived[-1] > killed + 5 and watcher.sent[-1] > killed + 3)
        time.sleep(max(0, killed + options.seconds - time.monotonic()))
        found = {"box": box, **judged(watcher, killed, time.monotonic())}
        status = lab.status("losses")
        told = [loss["seconds"] for loss in status.get("losses", [])]
        found.update(told=told[-1] if told else None, plan_version=status["plan_version"], load=os.getloadavg()[0])
        rounds.append(found)
        print(json.dumps({key: value for key, value in found.items() if key != "course"}), flush=True)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        if not options.silent:
            service.back_at = time.monotonic()
        if options.survive:
            lab.until("the plan is whole", 120, lambda: (lab.status("losses") or {}).get("losses_covered") == options.survive)
        lab.until("the box has work", 120, lambda: box in (lab.status("losses") or {"placement": {}})["placement"])
    sender.is_over.set()
    sender.join()
    os.close(held)
    lab.until("the run is complete", 60, lambda: (lab.status("losses") or {}).get("state") == "complete")
    watcher.is_over.set()
    watcher.join()
    numbers = [json.loads(line)["n"] for line in watcher.path.read_text().splitlines()]
    events = [event for event in (lab.ask("events", json_output=False) or "").splitlines() if "losses" in event]
    return {
        "sent": sender.count, "rows": len(numbers), "each_once": sorted(numbers) == list(range(sender.count)),
        "rounds": rounds, "events": events,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rate", type=float, default=200.0, help="records per second")
    parser.add_argument("--survive", type=int, default=1, help="0: the plan covers no loss")
    parser.add_argument("--seconds", type=float, default=9.0, help="observed after each loss")
    parser.add_argument("--interval", default="200ms", help="between checkpoints")
    parser.add_argument("--silent", action="store_true", help="stop the processes of the box in place of killing them")
    parser.add_argument("--detection", help="of the controller")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    options = parser.parse_args()
    lab = Lab(options.binary, {"hub": 1, "box": 3}, namespaces=False, keep=options.keep)
    if options.detection:
        lab.more["controller"] = ["--detection", options.detection]
    try:
        result = losses(lab, options)
        result["left"] = lab.end()
    except Stuck as stuck:
        print(stuck, file=sys.stderr)
        return 1
    finally:
        lab.remove()
    for name in ("gap", "p95_back", "told"):
        values = sorted(one[name] for one in result["rounds"] if one[name] is not None)
        if values:
            result[name] = {"p50": statistics.median(values), "p95": p95(values), "most": values[-1], "of": len(values)}
            print(name, json.dumps(result[name]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['rows']} rows of {result['sent']} records, each once: {result['each_once']}; left behind: {result['left']}")
    return 0 if result["each_once"] else 1


if __name__ == "__main__":
    sys.exit(main())
