"""Measures the queue of jobs: published figures beside those of the simulation, and a simulation beside a real cluster.

    python3 benches/experiments/jobs.py --binary target/release/tidemill [--only simulated,live] [--jobs 60] [--scale 0.1]
    make bench BENCH="jobs --only simulated"

`simulated` repeats examples and traces whose figures are published. `live` starts a controller and two agents with four slots each, submits
the jobs of a trace at its times, scaled, and ends the controller with `kill -9` once in the middle. The tasks are real processes that
write checkpoints when they are preempted. The same trace then goes through `tidemill job simulate`. Results are written to jobs.json and
jobs.md in --out; parts that are not measured again stay.
"""
import argparse
import contextlib
import csv
import datetime
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import jobs_page
import two_racks
from cluster_lab import CONTROLLER, Lab, Stuck

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SIXTY = REPOSITORY / "cluster/jobs/tests/data/60-jobs.csv"
FREE = ("--checkpoint", "0s", "--resume", "0s")
# Length of a step of a task, seconds.
STEP = 0.05
# Until everything of a cluster has happened, seconds.
PATIENCE = 60

TASK = """#!/usr/bin/env python3
# Works in steps of equal length, and notes each with the number of its start. It continues from its checkpoint.
import os, signal, sys, time
log, steps, length = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
folder = os.environ["TIDEMILL_CHECKPOINT"]
kept, wanted = os.path.join(folder, "step"), []
signal.signal(signal.SIGTERM, lambda *_: wanted.append("stop"))
first = int(open(kept).read()) if os.path.exists(kept) else 0
begun, step = time.monotonic(), first
with open(f"{log}.{os.environ['TIDEMILL_RANK']}", "a", buffering=1) as out:
    while step < steps and not wanted:
        time.sleep(max(0.0, begun + (step + 1 - first) * length - time.monotonic()))
        step += 1
        out.write(f"{step} {os.environ['TIDEMILL_INCARNATION']} {time.time():.3f}\\n")
if step < steps:
    with open(kept, "w") as out:
        out.write(str(step))
    open(os.path.join(folder, "RESUME"), "w").close()
"""


def simulate(binary, *arguments):
    """The results of `job simulate`, by policy."""
    command = [binary, "job", "simulate", *arguments, "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Stuck(f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr.strip()}")
    return {one["policy"]: one for one in json.loads(done.stdout)["policies"]}


def simulated(options):
    binary = options.binary
    with tempfile.TemporaryDirectory(prefix="tidemill-jobs-") as folder:
        example = pathlib.Path(folder) / "example.csv"
        example.write_text("job,tasks,submitted,duration\n1,2,0s,2s\n2,1,0s,8s\n3,2,0s,6s\n")
        of = ("--trace", example, "--cluster", "1x2", "--interval", "1s", "--least-run", "1s", *FREE)
        continuous = simulate(binary, *of, "--thresholds", "none", "--policy", "srsf,2d-las,2d-gittins")
        queued = simulate(binary, *of, "--thresholds", "4", "--policy", "2d-gittins")
    example = {name: one["completion"]["mean"] for name, one in continuous.items()}
    example["2d-gittins in queues"] = queued["2d-gittins"]["completion"]["mean"]
    policies = ("--policy", "fifo,best-effort,2d-las,srtf,srsf", "--least-run", "0s")
    sixty = {str(slots): simulate(binary, "--trace", SIXTY, "--cluster", f"1x{slots}", *policies, *FREE) for slots in (8, 16)}
    generated = []
    for seed in (1, 2, 3):
        of = ("--jobs", "480", "--seed", str(seed), "--policy", "fifo,best-effort,2d-las,2d-gittins,srtf")
        generated.append({
            "seed": seed,
            "free": ratios(simulate(binary, *of, "--thresholds", "3250,7200,18000", "--least-run", "0s", *FREE)),
            "costly": ratios(simulate(binary, *of, "--thresholds", "3200")),
        })
    return {"example": example, "sixty": sixty, "generated": generated}


def ratios(found):
    las = found["2d-las"]
    mean = lambda name: found[name]["completion"]["mean"] / las["completion"]["mean"]
    return {
        "fifo": mean("fifo"), "fifo_median": found["fifo"]["completion"]["p50"] / las["completion"]["p50"],
        "best_effort": mean("best-effort"), "srtf": mean("srtf"), "gittins": mean("2d-gittins"),
        "preemptions": las["preemptions"],
    }


def percentile(values, part):
    """The least value with at least this part of all at or below it, as `job simulate` counts."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(part * len(ordered))) - 1]


def seconds(text):
    number = float(text.rstrip("smin"))
    return number * 60 if text.endswith("min") else number


def trace(options):
    """Jobs of the trace in scaled seconds, in the order of their submissions."""
    with open(options.trace, encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    jobs = [{
        "tasks": int(row["tasks"]), "at": seconds(row["submitted"]) * options.scale,
        "steps": max(1, round(seconds(row["duration"]) * options.scale / STEP)),
    } for row in rows]
    jobs.sort(key=lambda job: job["at"])
    return jobs[: options.jobs]


class Cluster:
    """A controller with a policy, and two agents with four slots each."""

    def __init__(self, options, policy):
        self.lab = Lab(options.binary, {"box": 2}, namespaces=False, keep=options.keep)
        scaled = lambda number: f"{number * options.scale:.3f}"
        self.lab.more[CONTROLLER] = ["--job-policy", policy, "--job-thresholds", scaled(options.threshold),
                                     "--job-least-run", scaled(60) + "s", "--job-lease", "60s"]
        for worker in self.lab.workers:
            self.lab.more[worker] = ["--processors", "4", "--memory", "4GiB"]
        self.files = self.lab.folder / "files"
        self.files.mkdir()
        (self.files / "task.py").write_text(TASK)
        self.lab.start()

    def submit(self, name, tasks, steps):
        """Queues a job; its name in the queue. A controller that is starting is asked again."""
        text = {"version": 1, "job": {
            "name": name, "command": ["./task.py", str(self.files / name), str(steps), str(STEP)], "gang": tasks,
            "resources": {"cores": 1, "memory": "64MB"}, "checkpoint_within": "20s",
        }}
        file = self.files / f"{name}.yaml"
        file.write_text(json.dumps(text))
        while (told := self.lab.ask("job", "submit", str(file))) is None:
            time.sleep(0.2)
        return told["job"]["job"]

    def jobs(self):
        told = self.lab.ask("job", "queue", "--all")
        return None if told is None else {job["job"]: job for job in told["jobs"]}

    def state(self, job):
        return (self.jobs() or {}).get(job, {}).get("state")

    def noted(self, name, tasks):
        """Steps of each task: number, start and time."""
        found = []
        for rank in range(tasks):
            lines = []
            with contextlib.suppress(OSError):
                lines = (self.files / f"{name}.{rank}").read_text().splitlines()
            found.append([(int(step), int(start), float(at)) for step, start, at in map(str.split, lines)])
        return found

    def costs(self):
        """Seconds from a submission to the first step, less that step; and from a wanted end to free machines. Medians of three."""
        starts, stops = [], []
        for number in range(3):
            name = f"trial-{number}"
            begun = time.time()
            job = self.submit(name, 1, 100_000)
            self.lab.until("a trial runs", PATIENCE, lambda: self.noted(name, 1)[0])
            starts.append(self.noted(name, 1)[0][0][2] - begun - STEP)
            self.lab.until("a trial is running", PATIENCE, lambda: self.state(job) == "running")
            begun = time.time()
            self.lab.ask("job", "cancel", job)
            self.lab.until("a trial has ended", PATIENCE, lambda: self.state(job) == "cancelled")
            stops.append(time.time() - begun)
        return {"start": statistics.median(starts), "stop": statistics.median(stops)}


def follow(cluster, jobs, policy):
    """Submits the jobs at their times, and kills the controller once in the middle; until all have ended."""
    names, submitted, killed = [], [], None
    begun = time.time()
    shown = 0.0
    while True:
        now = time.time() - begun
        while len(names) < len(jobs) and jobs[len(names)]["at"] <= now:
            job = jobs[len(names)]
            submitted.append(begun + job["at"])
            names.append(cluster.submit(f"job-{len(names)}", job["tasks"], job["steps"]))
        if killed is None and len(names) >= max(1, len(jobs) // 2):
            killed = time.time() - begun
            if not cluster.lab.services[CONTROLLER].kill(1.0):
                raise Stuck("the controller was not there to be killed")
        found = cluster.jobs()
        states = [found[name]["state"] for name in names if name in found] if found else []
        failed = [found[name] for name in names if found and found.get(name, {}).get("state") in ("failed", "cancelled")]
        if failed:
            raise Stuck(f"{failed[0]['job']} is {failed[0]['state']}: {failed[0]['because']}")
        complete = states.count("complete")
        if now - shown >= 5:
            shown = now
            print(f"{policy}: {complete} of {len(jobs)} jobs complete after {now:.0f} s", file=sys.stderr, flush=True)
        if complete == len(jobs):
            break
        time.sleep(0.2)
    if cluster.lab.services[CONTROLLER].starts < 2:
        raise Stuck("the controller was not started again")
    return names, submitted, {"killed_after": killed, "begun": begun, "jobs": found}


def live_of(options, policy, jobs):
    cluster = Cluster(options, policy)
    try:
        costs = cluster.costs()
        names, submitted, course = follow(cluster, jobs, policy)
        times, faults, ends = [], [], []
        for number, job in enumerate(jobs):
            noted = cluster.noted(f"job-{number}", job["tasks"])
            for rank, steps in enumerate(noted):
                if [step for step, *_ in steps] != list(range(1, job["steps"] + 1)):
                    faults.append(f"task {rank} of {names[number]} lost or repeated a step")
            ends.append(max(steps[-1][2] for steps in noted if steps))
            times.append(ends[-1] - submitted[number])
        preemptions = sum(course["jobs"][name]["preemptions"] for name in names)
        left = cluster.lab.end()
    finally:
        cluster.lab.remove()
    return costs, {
        "mean": statistics.mean(times), "p50": percentile(times, 0.5), "p95": percentile(times, 0.95), "times": times,
        "makespan": max(ends) - submitted[0], "preemptions": preemptions, "killed_after": course["killed_after"],
        "faults": faults, "left": left,
    }


def as_simulated(options, policy, jobs, costs):
    """The same jobs in virtual time: with the costs that the cluster showed, and without any."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="tidemill-jobs-") as folder:
        for name, start, stop in (("simulated", costs["start"], costs["stop"]), ("without_costs", 0.0, 0.0)):
            lines = [f"{number},{job['tasks']},{job['at']:.3f}s,{job['steps'] * STEP + start:.3f}s" for number, job in enumerate(jobs)]
            file = pathlib.Path(folder) / "trace.csv"
            file.write_text("\n".join(["job,tasks,submitted,duration", *lines]) + "\n")
            one = simulate(
                options.binary, "--trace", file, "--cluster", "2x4", "--policy", policy, "--thresholds",
                f"{options.threshold * options.scale:.3f}", "--least-run", f"{60 * options.scale:.3f}s",
                "--checkpoint", f"{stop:.3f}s", "--resume", f"{start:.3f}s",
            )[policy]
            found[name] = {**{key: one["completion"][key] for key in ("mean", "p50", "p95")},
                           "makespan": one["makespan"], "preemptions": one["preemptions"]}
    return found


def live(options):
    jobs = trace(options)
    found = {"trace": options.trace.name, "jobs": len(jobs), "scale": options.scale, "threshold": options.threshold, "policies": {}}
    for policy in ("fifo", "2d-las"):
        costs, measured = live_of(options, policy, jobs)
        found["policies"][policy] = {"live": measured, "costs": costs, **as_simulated(options, policy, jobs, costs)}
        print(f"{policy}: mean {measured['mean']:.1f} s, simulated {found['policies'][policy]['simulated']['mean']:.1f} s; "
              f"faults: {measured['faults'] or 'none'}; left behind: {measured['left'] or 'nothing'}", file=sys.stderr, flush=True)
    return found


PARTS = {"simulated": simulated, "live": live}


def commit():
    done = subprocess.run(["git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    only = lambda text: [word for word in text.split(",") if word in PARTS or sys.exit(f"{word}: one of {', '.join(PARTS)}")]
    parser.add_argument("--binary", default=REPOSITORY / "target/release/tidemill", type=pathlib.Path)
    parser.add_argument("--only", default=list(PARTS), type=only, help="simulated,live")
    parser.add_argument("--jobs", default=60, type=int, help="the first N of the trace, live")
    parser.add_argument("--scale", default=0.1, type=float, help="of the times of the trace, live")
    parser.add_argument("--threshold", default=600.0, type=float, help="of 2d-las, slot-seconds before they are scaled, live")
    parser.add_argument("--trace", default=SIXTY, type=pathlib.Path, help="of the live part, with the columns job,tasks,submitted,duration")
    parser.add_argument("--out", default=REPOSITORY / "docs/benchmarks", type=pathlib.Path)
    parser.add_argument("--keep", action="store_true", help="keep the folders of the clusters")
    options = parser.parse_args()
    options.binary = options.binary.absolute()
    if not options.binary.exists():
        print(f"jobs.py: {options.binary} is missing: cargo build --release --locked -p tidemill, or name another with --binary", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, interrupted)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "jobs.json"
    document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"parts": {}}
    failed = False
    for name in options.only:
        begun, facts = time.monotonic(), two_racks.machine()
        try:
            found = PARTS[name](options)
        except Stuck as error:
            print(f"jobs.py: {name}: {error}", file=sys.stderr)
            failed = True
            continue
        except KeyboardInterrupt:
            print("jobs.py: interrupted", file=sys.stderr)
            return 130
        for one in found.get("policies", {}).values():
            failed = failed or bool(one["live"]["faults"] or one["live"]["left"])
        document["parts"][name] = found | {
            "date": datetime.date.today().isoformat(), "machine": facts, "load_at_end": os.getloadavg()[0], "commit": commit(),
            "build": options.binary.parent.name, "minutes": (time.monotonic() - begun) / 60,
        }
        # What is done stays done if a later part fails.
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (options.out / "jobs.md").write_text(jobs_page.page(document["parts"]), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
