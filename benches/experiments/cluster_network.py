"""Machines in network namespaces: three sites (edge, hub, cloud), and links between them that have a rate and a delay.

    python3 benches/experiments/cluster_network.py --machines edge:2,hub:3,cloud:2 [--here]

Prints a line of JSON when everything is up: the namespace and the address of each machine. Then it takes orders from its standard
input, one a line, and answers each with a line of JSON. When its input ends it takes everything down, however its caller ended.

    cut NAME         nothing passes the link (`edge-hub`, `hub-cloud`) or reaches the machine any more; nobody is told
    heal NAME        it passes again
    shape LINK MBIT  the rate of a link, both ways
    delay LINK MS    its delay one way, in milliseconds
    bytes            what each link has carried, by direction

Rates are held by the kernel (`tc tbf`). Delays are made here, because many kernels have no netem: each link is a pair of TUN devices,
and this program carries packets from one to the other, later. With `--here` this namespace is a machine at the hub too.
Wants root, `ip`, `tc` and /dev/net/tun. Exit code 77 where these are not there or not permitted.
"""
import argparse
import collections
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time

SITES = ["edge", "hub", "cloud"]
# Both ways: Mbit/s, milliseconds one way.
LINKS = {("edge", "hub"): (100.0, 5.0), ("hub", "cloud"): (50.0, 20.0)}
# Where a machine of this site sends what is for another one.
NEXT = {("edge", "hub"): "hub", ("edge", "cloud"): "hub", ("hub", "edge"): "edge", ("hub", "cloud"): "cloud",
        ("cloud", "hub"): "hub", ("cloud", "edge"): "hub"}
# What waits at the beginning of a link at most; more is lost.
QUEUE_MILLISECONDS = 200
MTU = 1500
NETWORK = "10.213"
HERE = 250
ROUTER = 254

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
NOT_PERMITTED = 77


def run(*words):
    """A command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def link_name(one, other):
    return f"{one}-{other}"


class Wire:
    """A link between two sites: what comes out of one end goes into the other one after the delay."""

    def __init__(self, name, ends, delay):
        self.name, self.ends, self.delay = name, ends, delay
        self.is_cut = False
        # By the end that it comes from.
        self.waiting = [collections.deque(), collections.deque()]
        self.bytes, self.packets, self.lost = [0, 0], [0, 0], [0, 0]

    def take(self, end, now):
        """Takes what has come out of an end; some at once, so that the other ends have their turn."""
        for _ in range(64):
            try:
                packet = os.read(self.ends[end], 65536)
            except BlockingIOError:
                return
            if self.is_cut:
                self.lost[end] += 1
                continue
            self.bytes[end] += len(packet)
            self.packets[end] += 1
            self.waiting[end].append((now + self.delay, packet))

    def give(self, now):
        """Gives what is due, and tells when the next is; none: nothing waits."""
        following = None
        for end, waiting in enumerate(self.waiting):
            while waiting and waiting[0][0] <= now:
                _, packet = waiting.popleft()
                if self.is_cut:
                    self.lost[end] += 1
                    continue
                try:
                    os.write(self.ends[1 - end], packet)
                except OSError:
                    self.lost[end] += 1  # the device is full or down: packets may be lost
            if waiting and (following is None or waiting[0][0] < following):
                following = waiting[0][0]
        return following


class Network:
    def __init__(self, machines, here):
        self.prefix = f"tmc{os.getpid()}"
        self.machines = {}
        self.wires = {}
        self.here = here
        self.counts = machines
        self.namespaces = []

    def namespace(self, name):
        return f"{self.prefix}-{name}"

    def address(self, site, number):
        return f"{NETWORK}.{SITES.index(site) + 1}.{number}"

    def up(self):
        for site in SITES:
            self.add(site)
            # Routers forward; what has no way is thrown away.
            run("ip", "netns", "exec", self.namespace(site), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; "
                "if [ -d /proc/sys/net/ipv6 ]; then echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; fi")
        for number, ((one, other), (rate, delay)) in enumerate(LINKS.items()):
            ends = []
            for index, (site, towards) in enumerate(((one, other), (other, one))):
                ends.append(self.tun(f"tmc{os.getpid() % 100000}t{number}{index}", site, towards))
            wire = Wire(link_name(one, other), ends, delay / 1e3)
            self.wires[wire.name] = wire
            self.shape(wire.name, rate)
        for site in SITES:
            for other in SITES:
                if other != site:
                    run("ip", "-n", self.namespace(site), "route", "add", f"{self.address(other, 0)}/24",
                        "dev", f"to-{NEXT[site, other]}")
        for site in SITES:
            for number in range(1, self.counts.get(site, 0) + 1):
                self.machine(f"{site}-{number}", site, number, self.namespace(f"{site}-{number}"))
        if self.here:
            self.machine("here", "hub", HERE, None)

    def add(self, name):
        run("ip", "netns", "add", self.namespace(name))
        self.namespaces.append(self.namespace(name))
        run("ip", "-n", self.namespace(name), "link", "set", "lo", "up")

    def tun(self, device, site, towards):
        """The end of a link at a site; it lives as long as this program has it open."""
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
        name = self.namespace(site)
        run("ip", "link", "set", device, "netns", name)
        run("ip", "-n", name, "link", "set", device, "name", f"to-{towards}", "mtu", str(MTU))
        run("ip", "-n", name, "link", "set", f"to-{towards}", "up")
        return end

    def machine(self, name, site, number, namespace):
        """A machine behind the router of its site; no namespace: this one."""
        router, address = self.namespace(site), self.address(site, number)
        own, far = f"tmc{os.getpid() % 100000}h", f"m-{number}"
        if namespace is not None:
            self.add(name)
            own = "eth0"
            run("ip", "-n", namespace, "link", "add", own, "type", "veth", "peer", "name", far, "netns", router)
        else:
            run("ip", "link", "add", own, "type", "veth", "peer", "name", far, "netns", router)
        at = ["-n", namespace] if namespace is not None else []
        run("ip", "-n", router, "addr", "add", f"{self.address(site, ROUTER)}/32", "dev", far)
        run("ip", "-n", router, "link", "set", far, "up")
        run("ip", *at, "addr", "add", f"{address}/32", "dev", own)
        run("ip", *at, "link", "set", own, "up")
        everything = "default" if namespace is not None else f"{NETWORK}.0.0/16"
        run("ip", *at, "route", "add", everything, "via", self.address(site, ROUTER), "dev", own, "onlink",
            "src", address)
        self.machines[name] = {"namespace": namespace, "address": address, "site": site, "router": router, "port": far,
                               "device": own}
        self.reach(name)

    def reach(self, name):
        machine = self.machines[name]
        run("ip", "-n", machine["router"], "route", "replace", f"{machine['address']}/32", "dev", machine["port"])

    def shape(self, name, rate):
        one, other = next(link for link in LINKS if link_name(*link) == name)
        # A burst is what goes out at once after a pause.
        burst = max(16, int(rate * 1e6 / 8 * 0.004 / 1024))
        for site, towards in ((one, other), (other, one)):
            run("tc", "-n", self.namespace(site), "qdisc", "replace", "dev", f"to-{towards}", "root", "tbf",
                "rate", f"{int(rate * 1000)}kbit", "burst", f"{burst}kb", "latency", f"{QUEUE_MILLISECONDS}ms")

    def cut(self, name):
        if name in self.wires:
            self.wires[name].is_cut = True
            return
        machine = self.machines[name]
        run("ip", "-n", machine["router"], "link", "set", machine["port"], "down")

    def heal(self, name):
        if name in self.wires:
            self.wires[name].is_cut = False
            return
        machine = self.machines[name]
        run("ip", "-n", machine["router"], "link", "set", machine["port"], "up")
        self.reach(name)

    def carried(self):
        """Bytes by link and direction."""
        told = {}
        for (one, other), wire in zip(LINKS, self.wires.values()):
            told[f"{one}->{other}"], told[f"{other}->{one}"] = wire.bytes
        return told

    def follow(self, order):
        """Does as told; what there is to answer."""
        words = order.split()
        match words:
            case ["cut", name]:
                self.cut(name)
            case ["heal", name]:
                self.heal(name)
            case ["shape", name, rate]:
                self.shape(name, float(rate))
            case ["delay", name, milliseconds]:
                self.wires[name].delay = float(milliseconds) / 1e3
            case ["bytes"]:
                return {"bytes": self.carried(), "lost": {name: sum(wire.lost) for name, wire in self.wires.items()}}
            case _:
                return {"error": f"not an order: {order}"}
        return {"done": order}

    def serve(self):
        """Carries packets and follows orders until there is nobody to give any."""
        by_end = {end: (wire, number) for wire in self.wires.values() for number, end in enumerate(wire.ends)}
        said = b""
        while True:
            now = time.monotonic()
            due = [wire.give(now) for wire in self.wires.values()]
            due = min((at for at in due if at is not None), default=None)
            pause = None if due is None else max(0.0, due - time.monotonic())
            readable, _, _ = select.select([0, *by_end], [], [], pause)
            now = time.monotonic()
            for descriptor in readable:
                if descriptor in by_end:
                    wire, end = by_end[descriptor]
                    wire.take(end, now)
                    continue
                read = os.read(0, 4096)
                if not read:
                    return
                *lines, said = (said + read).split(b"\n")
                for line in lines:
                    try:
                        answer = self.follow(line.decode().strip())
                    except (OSError, KeyError, ValueError, StopIteration) as error:
                        answer = {"error": str(error)}
                    print(json.dumps(answer), flush=True)

    def down(self):
        for name in self.namespaces:
            # Its devices go with it.
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        if self.here:
            own = f"tmc{os.getpid() % 100000}h"
            subprocess.run(["ip", "link", "del", own], capture_output=True, check=False)


def remove_what_others_left():
    """Namespaces of programs like this one that were killed."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        number = name.removeprefix("tmc").split("-")[0]
        if name.startswith("tmc") and number.isdigit() and not os.path.exists(f"/proc/{number}"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--machines", default="edge:2,hub:3,cloud:2")
    arguments.add_argument("--here", action="store_true", help="this namespace is the machine `here` at the hub")
    options = arguments.parse_args()
    counts = {site: int(count) for site, count in (part.split(":") for part in options.machines.split(","))}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that started it decides
    network = Network(counts, options.here)
    try:
        try:
            remove_what_others_left()
            network.up()
        except (OSError, FileNotFoundError) as error:
            print(f"no network of namespaces here: {error}", file=sys.stderr)
            return NOT_PERMITTED
        try:
            # Delays are to hold while the machine is busy.
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except OSError:
            pass
        print(json.dumps({"machines": network.machines, "links": {
            link_name(*link): {"mbit": rate, "milliseconds": delay} for link, (rate, delay) in LINKS.items()
        }}), flush=True)
        network.serve()
    finally:
        network.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
