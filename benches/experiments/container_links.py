"""Links between the locations of a deployment on this machine: what goes from one tier to another takes time and has a rate.

    python3 benches/experiments/container_links.py DEPLOYMENT [--link edge-hub:100:5 --link hub-cloud:50:20 --link edge-cloud:50:25]

A link is its two tiers, Mbit/s and milliseconds one way. Between containers of different tiers every packet goes through this
program, because many kernels have no netem: each container gets a TUN device and routes to the containers of other tiers over it.
Containers that are started anew get theirs anew. Prints a line of JSON when the links are there. Then it takes orders from its
standard input, one a line, and answers each with a line of JSON:

    cut LINK         nothing passes any more; nobody is told
    heal LINK        it passes again
    bytes            what each link has carried

When its input ends the devices are gone, and containers reach each other directly again. Wants root, `ip`, `nsenter` and
/dev/net/tun. Exit code 77 where these are not there or not permitted.
"""
import argparse
import collections
import fcntl
import json
import os
import pathlib
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
NOT_PERMITTED = 77
DEVICE = "links0"
MTU = 1400
# How often it is looked whether a container was started anew, seconds.
LOOK = 0.4
# What waits at the beginning of a link at most, seconds; more is lost.
QUEUE = 0.2
DEFAULT = ["edge-hub:100:5", "hub-cloud:50:20", "edge-cloud:50:25"]


def run(*words):
    """A command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Link:
    """Both directions of a link."""

    def __init__(self, text):
        name, rate, delay = text.split(":")
        self.name, self.tiers = name, frozenset(name.split("-"))
        self.seconds_per_byte, self.delay = 8 / (float(rate) * 1e6), float(delay) / 1e3
        self.is_cut, self.bytes, self.lost = False, 0, 0
        # By sending tier, when it has sent all that it has taken.
        self.free = collections.defaultdict(float)

    def due(self, tier, length, now):
        """When a packet arrives; none: it is lost."""
        begin = max(now, self.free[tier])
        if self.is_cut or begin - now > QUEUE:
            self.lost += 1
            return None
        self.free[tier] = begin + length * self.seconds_per_byte
        self.bytes += length
        return self.free[tier] + self.delay


class Container:
    """A container with its device."""

    def __init__(self, pid, address, tier):
        self.pid, self.address, self.tier = pid, address, tier
        self.device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        name = f"tml{pid}"
        fcntl.ioctl(self.device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
        try:
            run("ip", "link", "set", name, "netns", str(pid))
            self.inside("link", "set", name, "name", DEVICE, "mtu", str(MTU), "up")
        except OSError:
            self.close()
            raise

    def inside(self, *words):
        run("nsenter", "-t", str(self.pid), "-n", "ip", *words)

    def close(self):
        os.close(self.device)


class Links:
    """All links and containers."""

    def __init__(self, deployment, links):
        self.document = json.loads((pathlib.Path(deployment) / "deployment.json").read_text(encoding="utf-8"))
        self.links = {link.tiers: link for link in links}
        self.containers = {}  # by address
        self.known = {}  # by container's name, its pid
        self.waiting = []  # (when, number, bytes, address), sorted by when as far as one direction goes
        self.queues = collections.defaultdict(collections.deque)

    def found(self):
        """Containers that run: name, pid, address, tier."""
        found = []
        for location in self.document["locations"]:
            ids = run("docker", "ps", "--quiet", "--filter", f"label=com.docker.compose.project={location['project']}").split()
            if not ids:
                continue
            try:
                told = json.loads(run("docker", "inspect", *ids))
            except OSError:
                continue  # one of them has just gone
            for one in told:
                addresses = [network["IPAddress"] for network in one["NetworkSettings"]["Networks"].values() if network["IPAddress"]]
                if one["State"]["Pid"] and addresses:
                    found.append((one["Name"], one["State"]["Pid"], addresses[0], location["tier"]))
        return found

    def look(self):
        """Gives devices to containers that have none, and routes to all."""
        try:
            found = self.found()
        except OSError:
            return  # the engine is being started again
        if {name: (pid, address) for name, pid, address, _ in found} == self.known:
            return
        self.known = {name: (pid, address) for name, pid, address, _ in found}
        now = {address: pid for _, pid, address, _ in found}
        for address, container in list(self.containers.items()):
            if now.get(address) != container.pid:
                container.close()
                del self.containers[address]
        for name, pid, address, tier in found:
            try:
                if address not in self.containers:
                    self.containers[address] = Container(pid, address, tier)
            except OSError:
                self.known.pop(name, None)  # it has gone meanwhile, or is not quite there: the next look tells
        for one in list(self.containers.values()):
            for other in self.containers.values():
                if frozenset((one.tier, other.tier)) in self.links:
                    try:
                        one.inside("route", "replace", f"{other.address}/32", "dev", DEVICE, "src", one.address)
                    except OSError:
                        self.known.clear()

    def take(self, container, now):
        """Takes what a container has sent."""
        for _ in range(64):
            try:
                packet = os.read(container.device, 65536)
            except OSError:
                return
            if len(packet) < 20 or packet[0] >> 4 != 4:
                continue
            address = ".".join(str(byte) for byte in packet[16:20])
            other = self.containers.get(address)
            if other is None:
                continue
            link = self.links[frozenset((container.tier, other.tier))]
            due = link.due(container.tier, len(packet), now)
            if due is not None:
                self.queues[container.tier, other.tier].append((due, address, packet))

    def give(self, now):
        """Gives what is due; when the next is."""
        following = None
        for (one, two), queue in self.queues.items():
            link = self.links[frozenset((one, two))]
            while queue and queue[0][0] <= now:
                _, address, packet = queue.popleft()
                container = self.containers.get(address)
                if container is None or link.is_cut:
                    link.lost += 1
                    continue
                try:
                    os.write(container.device, packet)
                except OSError:
                    link.lost += 1
            if queue and (following is None or queue[0][0] < following):
                following = queue[0][0]
        return following

    def order(self, line):
        """Does what a line says."""
        words = line.split()
        named = {link.name: link for link in self.links.values()}
        if words == ["bytes"]:
            return {name: {"bytes": link.bytes, "lost": link.lost} for name, link in named.items()}
        if len(words) == 2 and words[0] in ("cut", "heal") and words[1] in named:
            named[words[1]].is_cut = words[0] == "cut"
            return {"ok": True}
        return {"error": f"{line.strip()!r} is no order"}

    def serve(self):
        """Carries packets until the input ends."""
        rest, next_look = b"", 0.0
        os.set_blocking(0, False)
        while True:
            now = time.monotonic()
            if now >= next_look:
                self.look()
                next_look = now + LOOK
            following = self.give(time.monotonic())
            wait = min(x for x in (following, next_look) if x is not None) - time.monotonic()
            devices = {container.device: container for container in self.containers.values()}
            ready, _, _ = select.select([0, *devices], [], [], max(0.0, wait))
            now = time.monotonic()
            for end in ready:
                if end in devices:
                    self.take(devices[end], now)
                    continue
                text = os.read(0, 4096)
                if not text:
                    return
                rest += text
                while b"\n" in rest:
                    line, rest = rest.split(b"\n", 1)
                    print(json.dumps(self.order(line.decode())), flush=True)

    def close(self):
        for container in self.containers.values():
            container.close()


def main():
    """Makes the links and serves them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("deployment")
    parser.add_argument("--link", action="append")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        print("links between containers want root and /dev/net/tun", file=sys.stderr)
        sys.exit(NOT_PERMITTED)
    links = Links(arguments.deployment, [Link(text) for text in arguments.link or DEFAULT])
    try:
        links.look()
        print(json.dumps({"containers": sorted(links.containers)}), flush=True)
        links.serve()
    finally:
        links.close()


main()
