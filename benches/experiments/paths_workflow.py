#!/usr/bin/env python3
"""A workflow over two machines with two paths, one of which is silently dropped, again and again.

    python3 benches/experiments/paths_workflow.py --binary target/release/tidemill
    ... --down 20 --up 20 --minutes 10      twenty seconds without a path and twenty with both, for ten minutes
    ... --every 5                           the path in use is dropped; --fixed fibre drops always that one

The edge (namespace tmp_a) reads 200 rows/s; the hub (tmp_b) has the controller and the sink. Paths and drops are those of
`paths.py`. Each of the two addresses of the hub is reached over either path, as those of a host on the internet are.
Printed: time from each drop to the first new row in the file of the sink after the longest pause, restarts of slots,
and whether the file is that of a run without drops. Exits with 1 if it is not, or if a slot restarted.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import paths  # noqa: E402

RATE = 200
HUB = "10.77.1.2"
PLAN = """version: 1
workflow: {name: dropped}
tick: 20ms
checkpoint_every: 5
workers:
  - {id: edge, tier: edge, location: edge, worker_type: small}
  - {id: hub, tier: hub, location: hub, worker_type: small}
stages:
  - {id: readings, operator: readings, worker: edge}
  - {id: some, operator: some, worker: edge}
  - {id: there, operator: there, worker: hub}
classes:
  - {id: 0, share: 1, route: {readings: readings, some: some, there: there}}
edges:
  - {from: readings, to: some}
  - {from: some, to: there}
"""
WORKFLOW = f"""version: 1
name: dropped
sources:
  - {{id: readings, kind: csv, rate: {RATE}/s, options: {{path: readings.csv, columns: {{value: int64}}}}}}
operators:
  - {{id: some, kind: filter, input: readings, options: {{where: "value % 7 != 3"}}}}
sinks:
  - {{id: there, kind: jsonl, input: some, options: {{path: there.jsonl}}}}
run: {{tick: 20ms, checkpoint_every: 5}}
"""


def spread(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None


class Lab:
    """Controller, two workers and their folder."""

    def __init__(self, binary, folder):
        self.binary, self.folder, self.processes = binary, folder, []
        lte = paths.PATHS["lte"]
        # Each path leads to each address of the hub; answers leave by the path that the question came by.
        paths.run("ip", "-n", paths.A, "rule", "add", "from", f"{lte}.1", "lookup", "200")
        paths.run("ip", "-n", paths.A, "route", "add", f"{HUB}/32", "via", f"{lte}.2", "table", "200")
        fibre = paths.PATHS["fibre"]
        paths.run("ip", "-n", paths.A, "rule", "add", "from", f"{fibre}.1", "lookup", "201")
        paths.run("ip", "-n", paths.A, "route", "add", f"{lte}.2/32", "via", f"{fibre}.2", "table", "201")
        for space in (paths.A, paths.B):
            for key in ("all", "default", "fibre", "lte"):
                paths.run("ip", "netns", "exec", space, "sysctl", "-qw", f"net.ipv4.conf.{key}.rp_filter=0")
        state = folder / "controller"
        self.start(paths.B, "controller", "--state", state, "--name", HUB, "--name", f"{lte}.2", "--listen", "0.0.0.0:7420",
                   "--listen-hosts", "0.0.0.0:7421", name="controller")
        self.until("the controller is there", 30, lambda: (state / "address").exists() and (state / "address").read_text().strip())
        one = (state / "address").read_text().strip()
        self.address = one.replace(f"{HUB}:7420", f"{HUB}:7420,{lte}.2:7420")
        self.environment = dict(os.environ, TIDEMILL_CONTROLLER=one, TIDEMILL_CONTROLLER_STATE=str(state))
        for worker, space, number in (("hub", paths.B, 2), ("edge", paths.A, 1)):
            token = self.ask("token", space=paths.B).strip()
            (folder / f"join-{worker}").write_text(f"{self.address}\n{token}\n")
            own = [word for path, net in paths.PATHS.items() for word in ("--path", f"{path}={net}.{number}")]
            self.start(space, "worker", "--join-file", folder / f"join-{worker}", "--state", folder / f"w-{worker}", "--name", worker,
                       "--tier", worker, "--location", worker, "--type", "small", *own, name=worker)
        self.until("both workers are there", 30, lambda: sum(
            worker["is_alive"] for worker in json.loads(self.ask("workers", "--output", "json"))["workers"]) == 2)

    def start(self, space, *words, name):
        log = open(self.folder / f"{name}.log", "w", encoding="utf-8")
        self.processes.append(subprocess.Popen(
            ["ip", "netns", "exec", space, "setpriv", "--pdeathsig", "KILL", self.binary, *map(str, words)],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def ask(self, *words, space=paths.B):
        state = str(self.folder / "controller")
        done = subprocess.run(["ip", "netns", "exec", space, self.binary, *words, "--controller-state", state],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    @staticmethod
    def until(what, seconds, is_so):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if is_so():
                    return
            except (OSError, ValueError, KeyError):
                pass
            time.sleep(0.1)
        raise OSError(f"{what}: not after {seconds} s")

    def status(self):
        return json.loads(self.ask("status", "dropped", "--output", "json"))["run"]


class Growth(threading.Thread):
    """When the file of the sink grows."""

    def __init__(self, file):
        super().__init__(daemon=True)
        self.file, self.times, self.over = file, [], threading.Event()

    def run(self):
        size = 0
        while not self.over.wait(0.002):
            now = self.file.stat().st_size if self.file.exists() else 0
            if now > size:
                self.times.append(time.monotonic())
                size = now

    def first_new_row(self, begin, end):
        """Seconds from `begin` to the first row after the longest pause that touches the time until `end`."""
        times = [moment for moment in self.times if begin - 1 < moment < end]
        pauses = [(after - before, after) for before, after in zip(times, times[1:]) if after > begin]
        return max(pauses)[1] - begin if pauses else None


def campaign(options, folder):
    options.single, options.fibre_mbit, options.lte_mbit = False, 200, 40
    paths.create_network(options, "session")
    lab = Lab(options.binary, folder)
    rounds = int(options.minutes * 60 / (options.down + options.up)) if options.minutes else options.rounds
    seconds = rounds * (options.down + options.up) + 15
    place = folder / "workflow"
    place.mkdir()
    (place / "workflow.yaml").write_text(WORKFLOW)
    (place / "plan.yaml").write_text(PLAN)
    (place / "readings.csv").write_text("value\n" + "".join(f"{number}\n" for number in range(int(seconds * RATE))))
    whole = subprocess.run([options.binary, "run", place / "workflow.yaml", "--rate", "max", "--quiet"],
                           capture_output=True, text=True, check=False)
    expected = (place / "there.jsonl").read_bytes()
    if whole.returncode != 0:
        raise OSError(whole.stderr)
    (place / "there.jsonl").unlink()
    lab.ask("submit", str(place / "workflow.yaml"), "--plan", str(place / "plan.yaml"))
    file = folder / "w-hub" / "runs" / "dropped" / "hub" / "there.jsonl"
    lab.until("the file grows", 60, lambda: file.stat().st_size > 1000)
    growth = Growth(file)
    growth.start()
    time.sleep(3)
    restarts, drops = lab.status()["restarts"], []
    for number in range(rounds):
        in_use = [path["path"] for path in json.loads(lab.ask("net", "paths", "ls", "dropped", "--output", "json"))["runs"][0]["paths"]
                  if path["worker"] == "hub" and path["connections"] > 0 and path["peer"] == "edge"]
        path = options.fixed or (in_use or ["fibre"])[0]
        begin = time.monotonic()
        paths.cut(path)
        time.sleep(max(0.0, options.down - (time.monotonic() - begin)))
        dropped = paths.heal()
        time.sleep(options.up)
        delay = growth.first_new_row(begin, begin + options.down + options.up)
        drops.append({"path": path, "packets_dropped": dropped, "new_row_ms": delay and round(delay * 1000, 1)})
        print(f"{time.strftime('%H:%M:%S')} round {number + 1} of {rounds}: {drops[-1]}", file=sys.stderr, flush=True)
    lab.until("the run has ended", 120, lambda: lab.status()["state"] not in ("starting", "running", "waiting"))
    growth.over.set()
    status = lab.status()
    found = file.read_bytes()
    delays = [drop["new_row_ms"] for drop in drops if drop["new_row_ms"] is not None]
    wrong = []
    if found != expected:
        wrong.append(f"{len(found)} bytes, and {len(expected)} without drops")
    if status["restarts"] != restarts or status["restarts"]:
        wrong.append(f"{status['restarts']} restarts")
    if any(drop["packets_dropped"] == 0 for drop in drops):
        wrong.append("a drop dropped nothing")
    result = {"machine": paths.machine(), "drops": drops, "state": status["state"], "restarts": status["restarts"], "rows": found.count(b"\n"),
              "new_row_ms": {name: spread(delays, part) for name, part in (("p50", 0.5), ("p95", 0.95), ("max", 1))}, "wrong": wrong}
    print(json.dumps({key: value for key, value in result.items() if key != "drops"}))
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(result, indent=1))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=pathlib.Path("target/release/tidemill"))
    parser.add_argument("--down", type=float, default=3, help="seconds without the path")
    parser.add_argument("--up", type=float, default=4, help="seconds with all paths")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, help="instead of rounds")
    parser.add_argument("--fixed", choices=list(paths.PATHS), help="the path that is dropped; default: the one in use")
    parser.add_argument("--output", help="file for all figures, JSON")
    parser.add_argument("--keep", action="store_true", help="leave the folder with logs")
    options = parser.parse_args()
    options.binary = options.binary.resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="paths-workflow-"))
    try:
        wrong = campaign(options, folder)
    finally:
        paths.remove_network()
        if options.keep:
            print(folder, file=sys.stderr)
        else:
            subprocess.run(["rm", "-rf", folder], check=False)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
