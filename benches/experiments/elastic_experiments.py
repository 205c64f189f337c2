#!/usr/bin/env python3
"""Elastic limits against static ones and a predictor, with real processes in control groups. Needs root and Linux.

    benches/experiments/elastic_experiments.py --tidemill target/release/tidemill --seconds 20 > results.md

Every service is a process in a control group of its own; six of them are a chain that passes records on. Records are due by a
schedule (open loop), whether or not the one before is through. What is measured is read from the control groups by this program,
the same way for all arms:

  none                                no limits: how busy the machine is otherwise
  static-0.75, static-1, static-1.5   limits are that times the peak of a run without limits (the largest mean over a second)
  predictor                           limits are 1.15 times the largest mean over a second of the last ten seconds, set once a second
  elastic                             `tidemill elastic attach`, its caps the sums of the limits of static-1

Experiments: E2 tracking, E3 memory, E4 four loads, E5 the period of the predictor, E6 what it costs. (E1, the formulas, is
`cargo nextest run -p tidemill-elastic`.)
"""

import argparse
import collections
import json
import math
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import threading
import time

from control_groups import IS_V2, MEBIBYTE, Group, Sampler, at, read


# --- services -------------------------------------------------------------------------------------------------------------

def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def serve(index, own, following):
    """A service: does the work that the record says, keeps its payload for two seconds, passes it on."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receiver.bind(("127.0.0.1", own))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    kept = collections.deque()
    while True:
        record = receiver.recv(2000)
        words = record.split()
        burn(float(words[2 + index]))
        kept.append((time.monotonic(), b"x" * int(float(words[1]))))
        while kept and kept[0][0] < time.monotonic() - 2:
            kept.popleft()
        sender.sendto(record, ("127.0.0.1", following))


# Seconds of processor time for each record: decode, detect, track, classify, aggregate, store.
COSTS = [0.003, 0.008, 0.002, 0.004, 0.001, 0.001]
NAMES = ["decode", "detect", "track", "classify", "aggregate", "store"]


def schedule(load, seconds, rate, seed):
    """When records are due, and their costs."""
    source, due, now = random.Random(seed), [], 0.0
    while now < seconds:
        costs = list(COSTS)
        if load == "fixed":
            now += 1 / rate
        elif load == "exp":
            now += source.expovariate(rate)
        elif load == "burst":
            now += source.expovariate(2 * rate if now % 8 < 3 else rate / 4)
        else:  # a day in twenty seconds: the rate rises and falls, and the work moves from detection to tracking and back
            now += source.expovariate(rate * (0.9 - 0.6 * math.cos(2 * math.pi * now / 20)))
            if now % 10 < 5:
                costs[1], costs[2] = costs[2], costs[1]
        due.append((now, costs))
    return due


def free_ports(count):
    """Ports that the system gives to nobody by itself: a service that begins again finds its own free."""
    found, port = [], 20_000
    while len(found) < count:
        port += 1
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


class Chain:
    """Six services, each in a group, and what comes out of the last of them."""

    def __init__(self):
        self.groups = [Group(name) for name in NAMES]
        self.out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.out.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.ports = free_ports(len(NAMES) + 1)
        self.out.bind(("127.0.0.1", self.ports[-1]))
        self.services = [self.start(index) for index in range(len(NAMES))]
        self.latencies, self.over = [], threading.Event()
        self.begun = time.monotonic()
        threading.Thread(target=self.receive, daemon=True).start()
        threading.Thread(target=self.keep, daemon=True).start()
        time.sleep(0.5)

    def start(self, index):
        command = [sys.executable, __file__, "--service", str(index), str(self.ports[index]), str(self.ports[index + 1])]
        service = subprocess.Popen(command)
        self.groups[index].add(service.pid)
        return service

    def keep(self):
        """A service that was ended for lack of memory is started again, as an engine for containers does."""
        while not self.over.wait(0.2):
            for index, service in enumerate(self.services):
                if service.poll() is not None and not self.over.is_set():
                    self.services[index] = self.start(index)

    def receive(self):
        while not self.over.is_set():
            record = self.out.recv(2000)
            self.latencies.append(time.monotonic() - self.begun - float(record.split()[0]))

    def offer(self, due, payload):
        self.latencies.clear()
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.begun = time.monotonic()
        for when, costs in due:
            left = self.begun + when - time.monotonic()
            if left > 0:
                time.sleep(left)
            record = f"{when:.6f} {payload} " + " ".join(f"{cost:.6f}" for cost in costs)
            sender.sendto(record.encode(), ("127.0.0.1", self.ports[0]))
        time.sleep(1.0)

    def end(self):
        self.over.set()
        for service in self.services:
            service.kill()
            service.wait()
        Group.remove_all()


class Predictor(threading.Thread):
    """Limits a little above the most that was used lately, set now and then."""

    def __init__(self, groups, every):
        super().__init__(daemon=True)
        self.groups, self.every, self.over = groups, every, threading.Event()
        self.seen = [collections.deque(maxlen=max(1, int(round(10 / every)))) for _ in groups]

    def run(self):
        last, begun = [group.look() for group in self.groups], time.monotonic()
        while not self.over.wait(self.every):
            now, passed = [group.look() for group in self.groups], time.monotonic() - begun
            begun += passed
            for index, group in enumerate(self.groups):
                used = (now[index]["used"] - last[index]["used"]) / passed
                self.seen[index].append((used, now[index]["memory"]))
                cores = max(0.05, 1.15 * max(used for used, _ in self.seen[index]))
                memory = 1.15 * max(memory for _, memory in self.seen[index]) + 4 * MEBIBYTE
                try:
                    group.limit(cores, memory)
                except OSError:
                    pass  # so much cannot be taken back: it stays what it was
            last = now

    def end(self):
        self.over.set()
        self.join()


class Elastic:
    """`tidemill elastic attach` on groups."""

    def __init__(self, groups, cores, memory, more=()):
        self.lines = []
        command = [TIDEMILL, "elastic", "attach", "--cpus", f"{cores:.3f}", "--memory", f"{int(memory)}B", "--output", "json"]
        for group in groups:
            command += ["--group", group.path]
        self.process = subprocess.Popen(command + list(more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ready = threading.Event()
        threading.Thread(target=self.listen, daemon=True).start()
        threading.Thread(target=self.complain, daemon=True).start()
        if not self.ready.wait(20):
            raise SystemExit("tidemill elastic attach did not begin")

    def listen(self):
        for line in self.process.stdout:
            self.lines.append(json.loads(line)["elastic"])
            self.ready.set()

    def complain(self):
        for line in self.process.stderr:
            if "warning" in line or "WARN" in line or "error" in line:
                print(line.rstrip(), file=sys.stderr)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        return self.lines[-1]


# --- experiments ----------------------------------------------------------------------------------------------------------

def run_chain(load, seconds, rate, payload, arm, peaks=None, every=1.0, seed=1):
    chain = Chain()
    try:
        controller, cost = None, None
        if arm.startswith("static"):
            factor = float(arm.split("-")[1])
            for group, (cores, memory) in zip(chain.groups, peaks):
                group.limit(factor * cores, factor * memory)
        elif arm == "predictor":
            for group, (cores, memory) in zip(chain.groups, peaks):
                group.limit(cores, memory)
            controller = Predictor(chain.groups, every)
            controller.start()
        elif arm == "elastic":
            controller = Elastic(chain.groups, sum(c for c, _ in peaks), sum(m for _, m in peaks), ["--margin", "8MiB", "--floor", "0.05"])
        sampler = Sampler(chain.groups)
        sampler.start()
        due = schedule(load, seconds, rate, seed)
        chain.offer(due, payload)
        sampler.end()
        if controller is not None:
            cost = controller.end()
        latencies = sorted(chain.latencies)
        result = sampler.summary() | {
            "load": load, "arm": arm, "every": every, "offered": len(due), "done": len(latencies),
            "latency_p50": at(latencies, 0.5), "latency_p99": at(latencies, 0.99), "latency_p999": at(latencies, 0.999),
            "peaks": sampler.peaks(),
        }
        if cost:
            result["cost"] = cost["cost_seconds"] / cost["seconds"] / len(NAMES)
        print(f"  {load} {arm} every {every:g} s: done {result['done']}/{result['offered']}, p99 {result['latency_p99']:.3f} s", file=sys.stderr)
        return result
    finally:
        chain.end()


def table(header, rows):
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def shown(result):
    return [
        result["load"], result["arm"],
        f"{result['cpu_slack_p50']:.3f}", f"{result['cpu_slack_p99']:.3f}",
        f"{result['memory_slack_p50']:.0f}", f"{result['memory_slack_p99']:.0f}",
        f"{100 * result['throttled']:.1f} %", f"{100 * result['done'] / result['offered']:.1f} %",
        f"{1e3 * result['latency_p50']:.0f}", f"{1e3 * result['latency_p99']:.0f}", f"{1e3 * result['latency_p999']:.0f}",
        str(result["kills"]),
    ]


HEADER = ["load", "limits", "cpu slack p50", "p99", "memory slack p50, MiB", "p99", "throttled", "done", "latency p50, ms", "p99", "p99.9", "killed"]
ARMS = ["static-0.75", "static-1", "static-1.5", "predictor", "elastic"]


def middle(results):
    """Of several runs of the same: each figure's median."""
    first = dict(results[0])
    for key, value in first.items():
        if isinstance(value, (int, float)):
            ordered = sorted(result[key] for result in results)
            first[key] = ordered[len(ordered) // 2]
    return first


def four_loads(arguments):
    print("## E4: four loads\n")
    rows, all_results = [], []
    for load in ("fixed", "exp", "burst", "trace"):
        free = run_chain(load, arguments.seconds, arguments.rate, arguments.payload, "none", seed=7)
        rows.append(shown(free))
        for arm in ARMS:
            results = [
                run_chain(load, arguments.seconds, arguments.rate, arguments.payload, arm, free["peaks"], seed=100 + turn)
                for turn in range(arguments.repeat)
            ]
            all_results += results
            rows.append(shown(middle(results)))
    table(HEADER, rows)
    return all_results


def periods_of_the_predictor(arguments):
    print("## E5: how often the predictor sets limits\n")
    free = run_chain("burst", arguments.seconds, arguments.rate, arguments.payload, "none", seed=7)
    rows, results = [], []
    for every in (0.1, 1.0, 5.0, 10.0):
        result = run_chain("burst", 2 * arguments.seconds, arguments.rate, arguments.payload, "predictor", free["peaks"], every, 100)
        results.append(result)
        rows.append([f"{every:g} s"] + shown(result)[2:])
    result = run_chain("burst", 2 * arguments.seconds, arguments.rate, arguments.payload, "elastic", free["peaks"], seed=100)
    rows.append(["elastic"] + shown(result)[2:])
    table(["every"] + HEADER[2:], rows)
    return results + [result]


DEMAND = """
import sys, time
levels = [float(word) for word in sys.argv[2].split(",")]
begun = time.monotonic()
while True:
    now = time.monotonic() - begun
    level = levels[int(now / float(sys.argv[1])) % len(levels)]
    until, spent = time.monotonic() + 0.02, time.thread_time()
    while time.thread_time() - spent < 0.02 * level and time.monotonic() < until + 0.2:
        pass
    time.sleep(max(0, until - time.monotonic()))
"""


def tracking(arguments):
    print("## E2: one group that uses 0.2, 0.4, 0.8 and 1.2 cores in turn\n")
    rows = []
    for arm in ("static-1.5", "elastic"):
        group = Group("tracked")
        # Two processes share the load: one alone cannot use more than a core.
        processes = [subprocess.Popen([sys.executable, "-c", DEMAND, "4", "0.1,0.2,0.4,0.6"]) for _ in range(2)]
        try:
            for process in processes:
                group.add(process.pid)
            controller = None
            if arm == "elastic":
                controller = Elastic([group], 1.8, 200 * MEBIBYTE, ["--margin", "10MiB"])
            else:
                group.limit(1.8, 200 * MEBIBYTE)
            sampler = Sampler([group])
            sampler.start()
            time.sleep(16 + 2)
            sampler.end()
            if controller:
                controller.end()
            summary, samples = sampler.summary(), sampler.samples[0]
            ratio = sorted(s["quota"] / max(s["used"], 0.01) for s in samples if s["quota"])
            rows.append([arm, f"{summary['cpu_slack_p50']:.3f}", f"{summary['cpu_slack_p99']:.3f}", f"{at(ratio, 0.5):.2f}",
                         f"{100 * summary['throttled']:.1f} %"])
        finally:
            for process in processes:
                process.kill()
                process.wait()
            Group.remove_all()
    table(["limits", "cpu slack p50, cores", "p99", "quota over use, p50", "throttled"], rows)


GROW = """
import sys, time
sys.stdin.readline()
blocks, worst = [], 0.0
for _ in range(int(sys.argv[1])):
    before = time.monotonic()
    blocks.append(b"x" * (1 << 20))
    worst = max(worst, time.monotonic() - before)
    time.sleep(0.005)
print(worst, flush=True)
sys.stdin.readline()
"""


def memory(arguments):
    print("## E3: four groups under 400 MiB; one grows\n")
    rows = []
    for what, mebibytes in (("to 200 MiB", 190), ("to 500 MiB", 490)):
        for arm in ("static", "elastic"):
            groups = [Group(f"m{index}") for index in range(4)]
            processes = []
            try:
                for index, group in enumerate(groups):
                    grows = str(mebibytes if index == 0 else 10)
                    process = subprocess.Popen([sys.executable, "-c", GROW, grows], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                    processes.append(process)
                    group.add(process.pid)
                controller = None
                if arm == "static":
                    for group in groups:
                        group.limit(None, 100 * MEBIBYTE)
                else:
                    controller = Elastic(groups, 2.0, 400 * MEBIBYTE)
                for process in processes:
                    process.stdin.write("go\n")
                    process.stdin.flush()
                stall = processes[0].stdout.readline().strip()
                time.sleep(0.3)
                kills = [group.look()["kills"] for group in groups]
                told = controller.end() if controller else None
                grants = str(told["members"][0]["grants"]) if told else "-"
                rows.append([what, arm, str(sum(kills)), grants, f"{1e3 * float(stall):.1f}" if stall else "ended"])
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
                Group.remove_all()
    table(["grows", "limits", "killed", "grants", "longest stall of 1 MiB, ms"], rows)


def cost(arguments):
    print("## E6: what it costs\n")
    rows = []
    for count in (1, 4, 16, 32):
        groups = [Group(f"c{index}") for index in range(count)]
        processes = []
        try:
            for group in groups:
                process = subprocess.Popen([sys.executable, "-c", DEMAND, "1", "0.01,0.02"])
                processes.append(process)
                group.add(process.pid)
            controller = Elastic(groups, 2.0, 64 * count * MEBIBYTE + 64 * MEBIBYTE, ["--margin", "16MiB", "--floor", "0.02"])
            time.sleep(arguments.seconds / 2)
            told = controller.end()
            of_core = told["cost_seconds"] / told["seconds"]
            rows.append([str(count), f"{100 * of_core:.2f} %", f"{100 * of_core / count:.3f} %",
                         f"{1e3 * told['working_seconds'] / max(1, told['periods']):.2f}", str(told["periods"])])
        finally:
            for process in processes:
                process.kill()
                process.wait()
            Group.remove_all()
    table(["groups", "of a core", "of a core per group", "a look takes, ms", "looks"], rows)


def main():
    global TIDEMILL
    if len(sys.argv) > 1 and sys.argv[1] == "--service":
        return serve(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidemill", default="target/release/tidemill", help="the program")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a run")
    parser.add_argument("--rate", type=float, default=20.0, help="records a second")
    parser.add_argument("--payload", type=int, default=400_000, help="bytes that each service keeps of a record for two seconds")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each arm of E4; medians are shown")
    parser.add_argument("--only", nargs="*", default=["E2", "E3", "E4", "E5", "E6"], help="experiments")
    parser.add_argument("--raw", help="write all figures of E4 and E5 to this file, as JSON")
    arguments = parser.parse_args()
    TIDEMILL = arguments.tidemill
    if os.geteuid() != 0:
        raise SystemExit("control groups are written by root: run this with sudo")
    model = next((line.split(":")[1].strip() for line in read("/proc/cpuinfo").splitlines() if line.startswith("model name")), "?")
    print(f"{model}, {os.cpu_count()} processors, Linux {platform.release()}, control groups of version {2 if IS_V2 else 1}; "
          f"load before: {os.getloadavg()[0]:.1f}; runs of {arguments.seconds:g} s\n")
    results = []
    try:
        if "E2" in arguments.only:
            tracking(arguments)
        if "E3" in arguments.only:
            memory(arguments)
        if "E4" in arguments.only:
            results += four_loads(arguments)
        if "E5" in arguments.only:
            results += periods_of_the_predictor(arguments)
        if "E6" in arguments.only:
            cost(arguments)
    finally:
        Group.remove_all()
    print(f"load after: {os.getloadavg()[0]:.1f}")
    if arguments.raw:
        with open(arguments.raw, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
