"""Disturbs runs of a cluster in network namespaces, and looks whether anybody who reads the outputs could tell.

    python3 benches/experiments/cluster_chaos.py --binary target/debug/tidemill                      100 disturbances, other ones each time
    python3 benches/experiments/cluster_chaos.py --binary target/debug/tidemill --rounds 3 --seed 1  the disturbances of a seed
    ... --no-namespaces                                                                  over the loopback: no links to cut

Three sites with two workers each, a controller at the hub, links of 100 Mbit/s and 5 ms (edge, hub) and of 50 Mbit/s and 20 ms (hub, cloud). A
paced run of two sources, a filter, a join, a window and four files of sinks on two workers; when it ends its outputs must be those of a run in one
process that nothing happened to, to the byte, and the next one begins. In the end nothing may be left.

Exit code 0: all of that is so. 1: it is not; what was found is told. 77: no namespaces here, nothing was tried.
"""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import cluster_lab
from cluster_lab import CONTROLLER, Lab, NotPermitted, Stuck, percentile

WORKERS = {"edge": 2, "hub": 2, "cloud": 2}
# Records per second of the left source; the right one has half as many.
RATE = 400
# A wait that never should take so long, on the slowest machine.
HANG = 90

WORKFLOW = f"""version: 1
name: disturbed
sources:
  - id: left
    kind: csv
    key: key
    rate: {RATE}/s
    options: {{path: left.csv, columns: {{key: text, at: int64, value: int64}}, event_time: at}}
  - id: right
    kind: csv
    key: key
    rate: {RATE // 2}/s
    options: {{path: right.csv, columns: {{key: text, at: int64, weight: int64}}, event_time: at}}
operators:
  - {{id: some, kind: filter, input: left, options: {{where: "value % 7 != 3"}}}}
  - {{id: pair, kind: join, inputs: [some, right], options: {{key: key, within: 2s, same_names: keep_first}}}}
  - {{id: counted, kind: window, input: pair, options: {{size: 5s, group_by: [key], aggregates: [{{function: count, as: n}}]}}}}
sinks:
  - {{id: pairs, kind: jsonl, input: pair, options: {{path: out/pairs.jsonl}}}}
  - {{id: copies, kind: jsonl, input: pair, options: {{path: out/copies.jsonl}}}}
  - {{id: table, kind: csv, input: counted, options: {{path: out/counted.csv}}}}
run: {{tick: 20ms, checkpoint_every: 5, dead_letters: out/dead.jsonl}}
"""

PLAN = """version: 1
workflow: {name: disturbed}
tick: 20ms
checkpoint_every: 5
workers:
  - {id: edge-1, tier: edge, worker_type: small}
  - {id: edge-2, tier: edge, worker_type: small}
  - {id: hub-1, tier: hub, worker_type: small}
  - {id: hub-2, tier: hub, worker_type: small}
  - {id: cloud-1, tier: cloud, worker_type: small}
  - {id: cloud-2, tier: cloud, worker_type: small}
stages:
  - {id: left, operator: left, worker: edge-1}
  - {id: right, operator: right, worker: edge-2}
  - {id: some, operator: some, worker: edge-1}
  - {id: pair_hub, operator: pair, worker: hub-1, share: 0.5}
  - {id: pair_cloud, operator: pair, worker: cloud-1, share: 0.5}
  - {id: counted, operator: counted, worker: cloud-1}
  - {id: pairs, operator: pairs, worker: hub-2}
  - {id: copies, operator: copies, worker: cloud-2}
  - {id: table, operator: table, worker: cloud-2}
classes:
  - {id: 0, share: 0.5, route: {left: left, right: right, some: some, pair: pair_hub, counted: counted, pairs: pairs, copies: copies, table: table}}
  - {id: 1, share: 0.5, route: {left: left, right: right, some: some, pair: pair_cloud, counted: counted, pairs: pairs, copies: copies, table: table}}
edges:
  - {from: left, to: some}
  - {from: some, to: pair_hub}
  - {from: some, to: pair_cloud}
  - {from: right, to: pair_hub, input: 1}
  - {from: right, to: pair_cloud, input: 1}
  - {from: pair_hub, to: counted}
  - {from: pair_cloud, to: counted}
  - {from: pair_hub, to: pairs}
  - {from: pair_cloud, to: pairs}
  - {from: pair_hub, to: copies}
  - {from: pair_cloud, to: copies}
  - {from: counted, to: table}
"""
ROLES = ["edge-1", "edge-2", "hub-1", "hub-2", "cloud-1", "cloud-2"]
# By file: the worker that has it, which is also its role; none: the controller.
OUTPUTS = {"out/pairs.jsonl": "hub-2", "out/copies.jsonl": "cloud-2", "out/counted.csv": "cloud-2", "out/dead.jsonl": None}
WATCHED = ["out/pairs.jsonl", "out/copies.jsonl"]

KILL_HOST = "a process of the run killed"
KILL_AGENT = "an agent killed, and with it its processes of the run"
KILL_CONTROLLER = "the controller killed"
KILL_BOTH = "the controller and an agent killed at once"
KILL_ALL = "all agents and the controller killed at once"
STOP = "a machine stands still (agent and processes stopped)"
CUT_LINK = "a link between sites cut"
CUT_MACHINE = "the cable of a machine pulled"
SHAPE = "a link between sites at a tenth of its rate"
EVERYWHERE = [KILL_HOST, KILL_AGENT, KILL_CONTROLLER, KILL_BOTH, KILL_ALL, STOP]
WITH_LINKS = [KILL_HOST, CUT_LINK, KILL_AGENT, KILL_CONTROLLER, CUT_MACHINE, KILL_HOST, SHAPE, KILL_BOTH, CUT_LINK, STOP, KILL_ALL]


class Watch:
    """When readers saw files grow."""

    def __init__(self, paths):
        self.paths = paths
        self.growths = {path: [] for path in paths}
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        longest = dict.fromkeys(self.paths, 0)
        while not self.is_over.wait(0.005):
            for path in self.paths:
                try:
                    length = path.stat().st_size
                except OSError:
                    continue
                if length > longest[path]:
                    longest[path] = length
                    self.growths[path].append(time.monotonic())

    def counts(self):
        return [len(self.growths[path]) for path in self.paths]

    def first_new(self, begin):
        """Seconds from `begin` to the first new row after the longest pause since, in the file where that is latest; none: no row came.

        Rows that were on their way when something happened are not what is asked for, so the pause may have begun before.
        """
        latest = None
        for path in self.paths:
            growths = list(self.growths[path])
            before = [at for at in growths if at <= begin][-1:]
            since = [at for at in growths if at > begin]
            if not since:
                continue
            starts = (before or [begin]) + since[:-1]
            end = max(zip(starts, since), key=lambda pair: pair[1] - pair[0])[1]
            latest = max(latest or 0.0, end - begin)
        return latest

    def end(self):
        self.is_over.set()
        self.thread.join()


def inputs(folder, rows):
    """The workflow, the plan, and rows of two sources."""
    folder.mkdir(parents=True)
    (folder / "workflow.yaml").write_text(WORKFLOW)
    (folder / "plan.yaml").write_text(PLAN)
    for name, count, step, column, times in (("left", rows, 5, "value", 1), ("right", rows // 2, 10, "weight", 3)):
        lines = [f"key,at,{column}"]
        for number in range(count):
            value = "none" if number % 1000 == 998 else number * times
            lines.append(f"k{number % 211:03},{1_700_000_000_000 + number * step},{value}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def undisturbed(lab, folder):
    """What the sinks have after a run in one process that nothing happens to."""
    done = subprocess.run(
        [lab.binary, "run", folder / "workflow.yaml", "--plan", folder / "plan.yaml", "--rate", "max", "--quiet"],
        capture_output=True, text=True, env=lab.environment(), check=False,
    )
    if done.returncode != 0:
        raise Stuck(f"the undisturbed run ends with {done.returncode}: {done.stderr}")
    expected = {file: (folder / file).read_bytes() for file in OUTPUTS}
    for file, content in expected.items():
        if len(content) < 300:
            raise Stuck(f"{file} of the undisturbed run is nearly empty: nothing could be told from it")
    return expected


class Campaign:
    def __init__(self, lab, options):
        self.lab, self.options = lab, options
        self.random = random.Random(options.seed)
        self.folder = lab.folder / "workflow"
        self.rounds, self.runs = [], 0
        self.run = self.watch = None
        self.faults = WITH_LINKS if lab.network else EVERYWHERE
        self.found = []

    def between(self, least, most):
        return self.random.uniform(least, most)

    # A run: begun, looked at, and compared.

    def begin(self):
        self.runs += 1
        self.run = f"disturbed-{self.runs}"
        self.lab.submit(self.folder / "workflow.yaml", self.folder / "plan.yaml", self.run)
        self.watch = Watch([self.output(file) for file in WATCHED])
        self.flows()

    def output(self, file):
        role = OUTPUTS[file]
        if role is None:
            return self.lab.folder / CONTROLLER / "runs" / self.run / "files" / file
        return self.lab.folder / f"w-{role}" / "runs" / self.run / role / file

    def is_over(self):
        """Whether the run is complete; it must not fail."""
        status = self.lab.status(self.run)
        if status is None or status["state"] in ("starting", "running", "waiting"):
            return False
        if status["state"] != "complete":
            raise Stuck(f"run {self.run} is {status['state']}: {status['reason']}\n{self.lab.told()}")
        return True

    def flows(self):
        """Waits until all parts are there and readers of both files see new rows; false: the run is complete."""
        seen, asked = None, time.monotonic()
        begin, all_there = time.monotonic(), False
        while time.monotonic() < begin + HANG:
            hosts = [pid for pids in self.lab.hosts().values() for pid in pids]
            if len(hosts) != len(ROLES):
                seen = None
            elif seen is None or seen[0] != hosts:
                seen = (hosts, self.watch.counts())
            elif all(now >= before + 5 for now, before in zip(self.watch.counts(), seen[1])):
                return True
            if time.monotonic() > asked + 1.0:
                if self.is_over():
                    return False
                asked = time.monotonic()
            time.sleep(0.01)
        raise Stuck(f"run {self.run} does not go on: {self.watch.counts()}\n{self.lab.told()}")

    def finish(self, expected):
        """Waits for the end of the run and compares."""
        self.lab.until(f"run {self.run} is complete", HANG + self.options.seconds, self.is_over, pause=0.3)
        self.watch.end()
        for file, content in expected.items():
            path = self.output(file)
            found = path.read_bytes() if path.exists() else b""
            if found != content:
                kept = pathlib.Path(f"{self.lab.folder}-different")
                kept.mkdir(exist_ok=True)
                (kept / f"{self.run}-{path.name}").write_bytes(found)
                (kept / f"expected-{path.name}").write_bytes(content)
                raise Stuck(f"{self.run}: {file} has {len(found)} bytes and others than the {len(content)} expected; see {kept}")
        self.lab.until("processes of a run that is complete are gone", 20, lambda: not any(self.lab.hosts().values()))
        state = self.lab.folder / CONTROLLER / "runs" / self.run / "state"
        manifest = (state / "manifest.json").read_text()
        unknown = [path.name for path in (state / "objects").iterdir() if path.name not in manifest]
        if unknown:
            raise Stuck(f"{self.run} left objects behind that its state does not name: {unknown}")
        self.run = None

    # What is done to it.

    def agents(self):
        return [name for name, service in self.lab.services.items() if name != CONTROLLER and service.process.poll() is None]

    def strike(self, fault):
        """Does it; when it began and ended, and to whom; none: it did not happen."""
        ways = {
            KILL_HOST: self.kill_host, KILL_AGENT: self.kill_agent, KILL_CONTROLLER: self.kill_controller,
            KILL_BOTH: self.kill_both, KILL_ALL: self.kill_all, STOP: self.stop, CUT_LINK: self.cut_link,
            CUT_MACHINE: self.cut_machine, SHAPE: self.shape,
        }
        return ways[fault](time.monotonic())

    def victim(self):
        return self.random.choice(self.agents())

    def kill_host(self, begin):
        hosts = [(name, pid) for name, pids in self.lab.hosts().items() for pid in pids]
        if not hosts:
            return None
        victim, pid = self.random.choice(hosts)
        os.kill(pid, signal.SIGKILL)
        return (begin, begin, victim) if self.lab.gone(pid) else None

    def kill_agent(self, begin):
        victim = self.victim()
        pids, back = self.lab.hosts()[victim], self.between(0.2, 4.0)
        if not self.lab.services[victim].kill(back):
            return None
        if not all(self.lab.gone(pid) for pid in pids):
            raise Stuck(f"a process of a run outlives its agent {victim}")
        return begin, begin + back, victim

    def kill_controller(self, begin):
        back = self.between(0.2, 3.0)
        return (begin, begin + back, CONTROLLER) if self.lab.services[CONTROLLER].kill(back) else None

    def kill_both(self, begin):
        victim = self.victim()
        back, other = self.between(0.2, 3.0), self.between(0.2, 3.0)
        happened = [self.lab.services[CONTROLLER].kill(back), self.lab.services[victim].kill(other)]
        return (begin, begin + max(back, other), f"{CONTROLLER}, {victim}") if all(happened) else None

    def kill_all(self, begin):
        back = self.between(0.2, 1.5)
        order = list(self.lab.services.values())
        self.random.shuffle(order)
        happened = [service.kill(back) for service in order]
        return (begin, time.monotonic() + back, "all") if all(happened) else None

    def stop(self, begin):
        victim = self.victim()
        pids = [self.lab.services[victim].process.pid, *self.lab.hosts()[victim]]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(self.between(0.2, 3.5))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return begin, time.monotonic(), victim

    def cut_link(self, _):
        link = self.random.choice(["edge-hub", "hub-cloud"])
        return self.while_so(f"cut {link}", f"heal {link}", self.between(0.3, 4.0), link)

    def cut_machine(self, _):
        victim = self.victim()
        return self.while_so(f"cut {victim}", f"heal {victim}", self.between(0.3, 4.0), victim)

    def shape(self, _):
        link = self.random.choice(["edge-hub", "hub-cloud"])
        rate = self.lab.network.links[link]["mbit"]
        return self.while_so(f"shape {link} {rate / 10}", f"shape {link} {rate}", self.between(1.0, 4.0), link)

    def while_so(self, order, undo, seconds, victim):
        begin = time.monotonic()
        self.lab.network.tell(order)
        time.sleep(seconds)
        self.lab.network.tell(undo)
        return begin, time.monotonic(), victim

    def rounds_done(self, expected):
        turn = self.random.randrange(len(self.faults))
        while len(self.rounds) < self.options.rounds:
            if self.run is None:
                self.begin()
            time.sleep(self.between(0.1, 0.8))
            fault = self.faults[turn % len(self.faults)]
            turn += 1
            happened = self.strike(fault)
            if happened is None:
                continue
            begin, end, victim = happened
            pause = max(0.0, end - time.monotonic())
            time.sleep(pause)
            goes_on = self.flows()
            first = self.watch.first_new(begin) if goes_on else None
            entry = {"fault": fault, "victim": victim, "run": self.run, "lasted": round(end - begin, 3),
                     "first_row": first and round(first, 3), "after_end": first and round(max(0.0, first - (end - begin)), 3)}
            self.rounds.append(entry)
            print(f"{len(self.rounds)}: {json.dumps(entry)}", flush=True)
            if not goes_on:
                self.finish(expected)
        if self.run is not None:
            self.finish(expected)

    def unexpected(self):
        """Agents and controllers that ended although nobody here ended them."""
        return [f"{name} ended by itself with {code}" for name, service in self.lab.services.items() for _, code in service.ends]


def table(rounds):
    lines = ["| event | times | lasted, p50 | first new row after it began: p50 | p95 | worst | after it ended: p50 | p95 | worst |",
             "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    by_fault = collections.defaultdict(list)
    for entry in rounds:
        by_fault[entry["fault"]].append(entry)
    by_fault["all of them"] = rounds
    for fault, entries in by_fault.items():
        told = [f"{percentile([entry['lasted'] for entry in entries], 0.5):.2f} s"]
        for key in ("first_row", "after_end"):
            values = [entry[key] for entry in entries if entry[key] is not None]
            told += [f"{percentile(values, share):.2f} s" if values else "-" for share in (0.5, 0.95, 1.0)]
        lines.append(f"| {fault} | {len(entries)} | {' | '.join(told)} |")
    return "\n".join(lines)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", required=True)
    arguments.add_argument("--rounds", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=None)
    arguments.add_argument("--seconds", type=int, default=45, help="of each run, if nothing happened to it")
    arguments.add_argument("--no-namespaces", action="store_true")
    arguments.add_argument("--keep", action="store_true", help="keep the folder with all files and logs")
    arguments.add_argument("--json", type=pathlib.Path, help="where the result goes")
    options = arguments.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(2**32)
    print(f"seed {options.seed}", flush=True)
    try:
        lab = Lab(options.binary, WORKERS, namespaces=not options.no_namespaces, keep=options.keep)
    except NotPermitted:
        return cluster_lab.NOT_PERMITTED
    campaign, left, failure, begin = Campaign(lab, options), [], None, time.monotonic()
    try:
        inputs(campaign.folder, options.seconds * RATE)
        expected = undisturbed(lab, campaign.folder)
        lab.start()
        campaign.rounds_done(expected)
        left = lab.end() + campaign.unexpected()
    except Stuck as stuck:
        failure = str(stuck)
    finally:
        lab.remove()
    result = {
        "version": 1, "seed": options.seed, "namespaces": not options.no_namespaces, "links": lab.network.links if lab.network else {},
        "runs": campaign.runs, "seconds": round(time.monotonic() - begin, 1), "rounds": campaign.rounds, "left": left,
        "failure": failure, "load_at_the_end": pathlib.Path("/proc/loadavg").read_text().split()[:3],
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if campaign.rounds:
        print(table(campaign.rounds))
    print(f"{len(campaign.rounds)} disturbances of {campaign.runs} runs in {result['seconds']:.0f} s, seed {options.seed}")
    for what in left:
        print(f"left behind: {what}", file=sys.stderr)
    if failure:
        print(failure, file=sys.stderr)
    return 1 if left or failure else 0


if __name__ == "__main__":
    sys.exit(main())
