#!/usr/bin/env python3
"""A model goes to the workers of two racks: how long that takes, and what the link of each rack carries.

    python3 benches/experiments/rollout.py [--binary target/debug/tidemill] [--workers 20] [--bytes 33554432]
        [--host-mbit 100] [--rack-mbit 50] [--kill SECONDS] [--restart SECONDS] [--out FILE]

Each rack is a switch with half of the workers, and one link to the middle, where the controller is. All are network namespaces of this
machine; links are shaped. A run whose files are a model of random bytes and a small workflow is submitted; the time ends when all
workers have the model. With `--kill` the worker that has most of the model while others have less is killed after that time;
the time is then that of the others. With `--restart` the controller is killed after that time, and is back 2 s later.
To compare with another version, name its command by `--binary`.

Writes JSON to FILE. Wants root, ip, tc; exit code 77 where namespaces are not permitted, 1 if not all workers had the model in time.
"""
import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PREFIX = f"tmroll{os.getpid()}_"
NOT_PERMITTED = 77
PATIENCE = 600
CONTROLLER = "10.8.100.2"


def run(*words):
    """Output of a command that must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout


def inside(node, *words):
    return ["ip", "netns", "exec", PREFIX + node, *map(str, words)]


def kill_inside(node):
    for pid in run("ip", "netns", "pids", PREFIX + node).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


class Network:
    """The middle, a switch for each rack, and the workers."""

    def __init__(self, workers, host_mbit, rack_mbit):
        self.racks = {f"rack{rack}": [f"w{rack}-{number}" for number in range(workers // 2)] for rack in range(2)}
        self.host_mbit, self.rack_mbit = host_mbit, rack_mbit
        self.nodes = ["middle", "controller", *self.racks, *(host for hosts in self.racks.values() for host in hosts)]

    def __enter__(self):
        try:
            for node in self.nodes:
                run("ip", "netns", "add", PREFIX + node)
                run("ip", "-n", PREFIX + node, "link", "set", "lo", "up")
            run(*inside("middle", "sysctl", "-qw", "net.ipv4.ip_forward=1"))
            self.cable("controller", "eth0", f"{CONTROLLER}/24", "middle", "hub", "10.8.100.1/24", 10 * self.host_mbit)
            run("ip", "-n", PREFIX + "controller", "route", "add", "default", "via", "10.8.100.1")
            for number, (rack, hosts) in enumerate(self.racks.items()):
                run("ip", "-n", PREFIX + rack, "link", "add", "switch", "type", "bridge")
                run("ip", "-n", PREFIX + rack, "link", "set", "switch", "up")
                self.cable("middle", rack, f"10.8.{number}.1/24", rack, "uplink", None, self.rack_mbit)
                for position, host in enumerate(hosts):
                    self.cable(host, "eth0", f"10.8.{number}.{position + 10}/24", rack, f"p{position}", None, self.host_mbit)
                    run("ip", "-n", PREFIX + host, "route", "add", "default", "via", f"10.8.{number}.1")
        except BaseException:
            self.__exit__()
            raise
        return self

    def cable(self, one, interface, address, other, peer, peer_address, mbit):
        """Both directions are shaped apart. An end without an address is a port of a switch."""
        run("ip", "link", "add", interface, "netns", PREFIX + one, "type", "veth", "peer", "name", peer, "netns", PREFIX + other)
        for node, name, own in ((one, interface, address), (other, peer, peer_address)):
            if own:
                run("ip", "-n", PREFIX + node, "addr", "add", own, "dev", name)
            else:
                run("ip", "-n", PREFIX + node, "link", "set", "dev", name, "master", "switch")
            run("ip", "-n", PREFIX + node, "link", "set", "dev", name, "up")
            run("tc", "-n", PREFIX + node, "qdisc", "add", "dev", name, "root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb",
                "latency", "50ms")

    def carried(self):
        """Bytes to each rack and from it."""
        found = {}
        for rack in self.racks:
            link = json.loads(run("ip", "-n", PREFIX + "middle", "-s", "-j", "link", "show", "dev", rack))[0]["stats64"]
            found[rack] = {"to": link["tx"]["bytes"], "from": link["rx"]["bytes"]}
        return found

    def __exit__(self, *_):
        for node in self.nodes:
            with contextlib.suppress(OSError):
                kill_inside(node)
            subprocess.run(["ip", "netns", "del", PREFIX + node], stderr=subprocess.DEVNULL, check=False)


def chain(workers):
    """A workflow with a stage for each worker, and its plan."""
    names = ["rows", *(f"f{number}" for number in range(1, len(workers) - 1)), "kept"]
    operators = "".join(f"  - {{id: {name}, kind: filter, input: {names[at]}, options: {{where: \"n >= 0\"}}}}\n"
                        for at, name in enumerate(names[1:-1]))
    workflow = ("version: 1\nname: chain\nsources:\n  - {id: rows, kind: csv, options: {path: rows.csv, columns: {n: int64}}}\n"
                f"operators:\n{operators}sinks:\n  - {{id: kept, kind: jsonl, input: {names[-2]}, options: {{path: kept.jsonl}}}}\n")
    plan = {
        "version": 1, "workflow": {"name": "chain"},
        "workers": [{"id": worker, "tier": "edge", "worker_type": "small"} for worker in workers],
        "stages": [{"id": name, "operator": name, "worker": worker} for name, worker in zip(names, workers)],
        "classes": [{"id": 0, "share": 1, "route": {name: name for name in names}}],
        "edges": [{"from": one, "to": other} for one, other in zip(names, names[1:])],
    }
    return workflow.encode(), plan


class Lab:
    """A controller and its workers."""

    def __init__(self, binary, network, folder):
        self.binary, self.network, self.folder = str(binary), network, folder
        self.agents = {}
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("TIDEMILL_")}

    def start(self, node, name, *words):
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(inside(node, self.binary, *words), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    env=self.environment)

    def until(self, what, is_so, pause=0.05):
        end = time.monotonic() + PATIENCE
        while not is_so():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {PATIENCE} s; see {self.folder}")
            time.sleep(pause)

    def start_controller(self):
        self.start("controller", "controller", "controller", "--state", self.folder / "controller", "--listen", f"{CONTROLLER}:7420",
                   "--listen-hosts", f"{CONTROLLER}:7421", "--name", CONTROLLER, "--detection", "30s")

    def begin(self):
        state = self.folder / "controller"
        self.start_controller()
        log = self.folder / "controller.log"
        self.until("the controller starts", lambda: (state / "admin.token").exists() and "controller at " in log.read_text())
        self.address = log.read_text().split("controller at ")[1].split()[0]
        self.token = (state / "admin.token").read_text().strip()
        join = self.folder / "join.token"
        join.write_text(self.ask("POST", "/v1/join-tokens", {"uses": 100})["token"])
        for rack, hosts in self.network.racks.items():
            for host in hosts:
                self.agents[host] = self.start(host, host, "worker", "--join", self.address, "--token-file", join, "--state",
                                               self.folder / host, "--name", host, "--tier", "edge", "--label", f"rack={rack}")
        alive = lambda: sum(worker["is_alive"] for worker in self.ask("GET", "/v1/workers"))
        self.until("all workers are there", lambda: alive() == len(self.agents), 0.5)

    def ask(self, method, path, body=None):
        """Asks from the namespace of the controller, in a process of its own."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        words = inside("controller", sys.executable, __file__, "--ask", method, f"https://{CONTROLLER}:7420{path}", self.token)
        done = subprocess.run(words, input=data, capture_output=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{method} {path}: {done.stderr.decode(errors='replace')[-600:]}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def submit(self, size):
        workflow, plan = chain(list(self.agents))
        files = {"workflow.yaml": workflow, "rows.csv": b"n\n1\n", "model.bin": os.urandom(size)}
        listed = []
        for path, content in files.items():
            digest = hashlib.sha256(content).hexdigest()
            self.ask("PUT", f"/v1/blobs/{digest}", content)
            listed.append({"path": path, "digest": digest, "bytes": len(content)})
        bundle = {"workflow": "workflow.yaml", "files": listed}
        before = self.network.carried()
        begun = time.monotonic()
        self.ask("POST", "/v1/runs", {"name": "chain", "bundle": bundle, "plan": plan})
        return listed[-1]["digest"], begun, before

    def bytes_of(self, worker, digest):
        files = self.folder / worker / "files"
        sizes = [0]
        for path in files.glob("*"):
            if path.name.startswith(digest):
                with contextlib.suppress(OSError):
                    sizes.append(path.stat().st_size)
        return max(sizes)


def answer(method, url, token):
    """Sends standard input, and prints the answer. Its certificate is that of a controller of this script."""
    context = ssl._create_unverified_context()
    request = urllib.request.Request(url, data=sys.stdin.buffer.read() or None, method=method)
    request.add_header("authorization", f"Bearer {token}")
    request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as reply:
            sys.stdout.buffer.write(reply.read())
    except urllib.error.HTTPError as error:
        sys.exit(f"{error}: {error.read().decode(errors='replace')}")


def measure(arguments, network, folder):
    lab = Lab(arguments.binary.resolve(), network, folder)
    lab.begin()
    time.sleep(3)  # what agents say to each other at the beginning is over
    digest, begun, before = lab.submit(arguments.bytes)
    has = lambda worker: (folder / worker / "files" / digest).exists()
    killed, times, restarts = None, {}, [] if arguments.restart is None else [arguments.restart, arguments.restart + 2]
    left = set(lab.agents)
    while left:
        passed = time.monotonic() - begun
        if passed > PATIENCE:
            raise TimeoutError(f"{sorted(left)} do not have the model; see {folder}")
        for worker in [worker for worker in left if has(worker)]:
            times[worker] = passed
            left.discard(worker)
        if restarts and passed >= restarts[0]:
            restarts.pop(0)
            if restarts:
                kill_inside("controller")
            else:
                lab.start_controller()
        if arguments.kill and killed is None and passed >= arguments.kill and left:
            killed = max(left, key=lambda worker: lab.bytes_of(worker, digest))
            kill_inside(killed)
            left.discard(killed)
        time.sleep(0.02)
    after = network.carried()
    links = {rack: {way: after[rack][way] - before[rack][way] for way in of} for rack, of in after.items()}
    ordered = sorted(times.values())
    events = lambda: [event["text"] for event in lab.ask("GET", "/v1/events?after=0") if "has reached" in event["text"]]
    end = time.monotonic() + 15  # older versions report nothing
    while not events() and time.monotonic() < end:
        time.sleep(1)
    return {
        "workers": len(lab.agents), "bytes": arguments.bytes, "host_mbit": arguments.host_mbit, "rack_mbit": arguments.rack_mbit,
        "killed": killed, "restart": arguments.restart, "first_s": round(ordered[0], 2), "median_s": round(ordered[len(ordered) // 2], 2),
        "last_s": round(ordered[-1], 2), "links": links,
        "copies": {rack: {way: round(count / arguments.bytes, 2) for way, count in of.items()} for rack, of in links.items()},
        "events": events(),
    }


def main():
    if sys.argv[1:2] == ["--ask"]:
        return answer(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=REPOSITORY / "target/debug/tidemill")
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--bytes", type=int, default=32 << 20)
    parser.add_argument("--host-mbit", type=int, default=100)
    parser.add_argument("--rack-mbit", type=int, default=50)
    parser.add_argument("--kill", type=float)
    parser.add_argument("--restart", type=float)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="tm-rollout-", ignore_cleanup_errors=True) as folder, \
                Network(arguments.workers, arguments.host_mbit, arguments.rack_mbit) as network:
            found = measure(arguments, network, pathlib.Path(folder))
    except OSError as error:
        if "not permitted" in str(error):
            print(error, file=sys.stderr)
            return NOT_PERMITTED
        raise
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
