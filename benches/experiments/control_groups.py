"""Control groups of experiments, version 1 or 2, and what their processes use. Needs root and Linux."""

import os
import signal
import threading
import time

PERIOD = 100_000
MEBIBYTE = 1 << 20
ROOT = "/sys/fs/cgroup"


def read(path):
    with open(path) as file:
        return file.read()


def write(path, value):
    with open(path, "w") as file:
        file.write(str(value))


def fields(path):
    return {line.split()[0]: int(line.split()[1]) for line in read(path).splitlines() if len(line.split()) == 2}


IS_V2 = {"cpu", "memory"} <= set((read(f"{ROOT}/cgroup.controllers") if os.path.exists(f"{ROOT}/cgroup.controllers") else "").split())
BASE = f"elastic-experiments-{os.getpid()}"


class Group:
    """A control group directly below that of this experiment."""

    all = []

    def __init__(self, name):
        self.path = f"/{BASE}/{name}"
        trees = [ROOT] if IS_V2 else [f"{ROOT}/{tree}" for tree in ("cpu", "cpuacct", "memory")]
        for tree in trees:
            os.makedirs(tree + self.path, exist_ok=True)
            if IS_V2:
                for folder in (ROOT, f"{ROOT}/{BASE}"):
                    write(f"{folder}/cgroup.subtree_control", "+cpu +memory")
        self.folders = [tree + self.path for tree in trees]
        self.cpu, self.accounting, self.memory = (self.folders * 3)[:3]
        Group.all.append(self)

    def add(self, process):
        for folder in self.folders:
            write(f"{folder}/cgroup.procs", process)

    def processes(self):
        return [int(line) for line in read(f"{self.memory}/cgroup.procs").split()]

    def limit(self, cores=None, memory=None):
        if cores is not None:
            quota = max(1000, int(cores * PERIOD))
            write(f"{self.cpu}/cpu.max", f"{quota} {PERIOD}") if IS_V2 else write(f"{self.cpu}/cpu.cfs_quota_us", quota)
        if memory is not None:
            memory = int(memory)
            if IS_V2:
                write(f"{self.memory}/memory.max", memory)
            else:
                both = f"{self.memory}/memory.memsw.limit_in_bytes"
                limit = f"{self.memory}/memory.limit_in_bytes"
                order = [both, limit] if int(read(limit)) < memory else [limit, both]
                for path in order:
                    if os.path.exists(path):
                        write(path, memory)

    def free(self):
        """Takes all limits away."""
        if IS_V2:
            write(f"{self.cpu}/cpu.max", f"max {PERIOD}")
            write(f"{self.memory}/memory.high", "max")
            write(f"{self.memory}/memory.max", "max")
        else:
            write(f"{self.cpu}/cpu.cfs_quota_us", -1)
            for name in ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes"):
                if os.path.exists(f"{self.memory}/{name}"):
                    write(f"{self.memory}/{name}", -1)

    def look(self):
        stat = fields(f"{self.cpu}/cpu.stat")
        if IS_V2:
            quota = read(f"{self.cpu}/cpu.max").split()[0]
            limit = read(f"{self.memory}/memory.high").strip()
            limit = read(f"{self.memory}/memory.max").strip() if limit == "max" else limit
            return {
                "used": stat["usage_usec"] / 1e6,
                "periods": stat["nr_periods"],
                "throttled": stat["nr_throttled"],
                "quota": None if quota == "max" else int(quota) / PERIOD,
                "memory": int(read(f"{self.memory}/memory.current")),
                "limit": None if limit == "max" else int(limit),
                "kills": fields(f"{self.memory}/memory.events")["oom_kill"],
            }
        quota, limit = int(read(f"{self.cpu}/cpu.cfs_quota_us")), int(read(f"{self.memory}/memory.limit_in_bytes"))
        return {
            "used": int(read(f"{self.accounting}/cpuacct.usage")) / 1e9,
            "periods": stat["nr_periods"],
            "throttled": stat["nr_throttled"],
            "quota": None if quota < 0 else quota / PERIOD,
            "memory": int(read(f"{self.memory}/memory.usage_in_bytes")),
            "limit": None if limit > 1 << 60 else limit,
            "kills": fields(f"{self.memory}/memory.oom_control").get("oom_kill", 0),
        }

    @classmethod
    def remove_all(cls):
        for group in cls.all:
            for process in group.processes():
                os.kill(process, signal.SIGKILL)
        until = time.monotonic() + 5
        for group in cls.all:
            for folder in group.folders:
                while os.path.isdir(folder) and time.monotonic() < until:
                    try:
                        os.rmdir(folder)
                    except OSError:
                        time.sleep(0.02)
        for tree in {os.path.dirname(folder) for group in cls.all for folder in group.folders}:
            try:
                os.rmdir(tree)
            except OSError:
                pass
        cls.all.clear()


class Sampler(threading.Thread):
    """What groups use and may use, every 100 ms."""

    def __init__(self, groups):
        super().__init__(daemon=True)
        self.groups, self.over = groups, threading.Event()
        self.samples = [[] for _ in groups]

    def run(self):
        last = [group.look() for group in self.groups]
        begun = [time.monotonic()] * len(self.groups)
        while not self.over.wait(0.1):
            for index, group in enumerate(self.groups):
                now, at = group.look(), time.monotonic()
                before, passed = last[index], at - begun[index]
                last[index], begun[index] = now, at
                self.samples[index].append({
                    "at": at,
                    "used": (now["used"] - before["used"]) / passed,
                    "quota": now["quota"],
                    "memory": now["memory"],
                    "limit": now["limit"],
                    "periods": now["periods"] - before["periods"],
                    "throttled": now["throttled"] - before["throttled"],
                    "kills": now["kills"] - before["kills"],
                })

    def end(self):
        self.over.set()
        self.join()
        return self

    def peaks(self, window=10):
        """By group: the largest mean over `window` samples, and the most memory."""
        found = []
        for samples in self.samples:
            used = [sample["used"] for sample in samples]
            means = [sum(used[at:at + window]) / window for at in range(max(1, len(used) - window + 1))]
            found.append((max(means), max(sample["memory"] for sample in samples)))
        return found

    def summary(self):
        flat = [sample for samples in self.samples for sample in samples]
        slack = sorted(s["quota"] - s["used"] for s in flat if s["quota"] is not None)
        memory = sorted((s["limit"] - s["memory"]) / MEBIBYTE for s in flat if s["limit"] is not None)
        periods = sum(s["periods"] for s in flat)
        return {
            "cpu_slack_p50": at(slack, 0.5),
            "cpu_slack_p99": at(slack, 0.99),
            "memory_slack_p50": at(memory, 0.5),
            "memory_slack_p99": at(memory, 0.99),
            "throttled": sum(s["throttled"] for s in flat) / periods if periods else 0.0,
            "kills": sum(s["kills"] for s in flat),
        }


def at(values, part):
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")
