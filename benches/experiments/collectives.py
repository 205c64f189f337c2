#!/usr/bin/env python3
"""Groups of programs on two oversubscribed racks: strategies beside rivals, tenants, background traffic, changes, predictions, loss, hints.

    python3 benches/experiments/collectives.py [--only all-reduce,tenants,background,change,prediction,loss,hints] [--trials 2]
        [--host-mbit 100] [--spine-mbit 50] [--tools .tidemill/two_racks] [--without-rivals]
        [--programs target/release] [--out docs/benchmarks]

`make bench BENCH=collectives` builds what it needs and starts it. It writes collectives.json and collectives.md to --out; parts that are not
measured now keep their figures. Rivals are installed once by `two_racks.py --install` (3 GB), which also describes the network.

| part | what |
|---|---|
| all-reduce | 4 and 8 ranks, 1 KiB to 16 MiB: MPI, Gloo, PCCL, and strategies; the largest size in the first trial only |
| tenants | two that are alike, with routes by hash and by ffa; three that compute and sum, with four policies |
| background | a ring of four hosts, one direction of one link three quarters full, and the ring reversed meanwhile |
| change | how long a sum takes during which the strategy changes; each sum is compared with the exact one |
| prediction | times that the service expects, beside those on the same links |
| loss | one link drops packets at random (nftables): operations end, results are exact, hints make sense |
| hints | two racks of three hosts with Zipf-like traffic of others: broadcast, all-reduce and exchanges with and without hints |

Needs root, ip and tc; exit code 77 where namespaces are not permitted, 1 if a part failed.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import collectives_page
import tenant_shares
import two_racks
from group_services import Group, Services
from two_racks import NOT_PERMITTED, PROGRAMS, REPOSITORY, Network, run

KIB, MIB = 1 << 10, 1 << 20
# The part of a link that the bytes of programs get, as in cost/expected.rs.
PAYLOAD = 1448 / 1514
SMALL_SIZES, LARGE_SIZES = [KIB, 64 * KIB, MIB], [16 * MIB]
# Who is measured in which order of ranks. Strategies that choose the ring need only one.
CONTESTS = [(name, order) for name in ("openmpi", "gloo") for order in two_racks.ORDERS] + [
    (name, "crossing") for name in ("pccl", "rank-order", "random", "locality", "ffa")]
BACKGROUND_PORT, EXCHANGE_PORT = 17001, 17002


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))]


class Ring(Network):
    """Four hosts in a circle. Each passes on what goes further."""

    def __init__(self, mbit):
        super().__init__(mbit, mbit, spines=())
        self.racks = [0] * 4

    def create(self):
        self.add(self.hosts)
        for host in range(4):
            run("ip", "-n", self.space(self.hosts[host]), "addr", "add", f"{self.address(host)}/32", "dev", "lo")
        for host in range(4):
            self.connect(self.hosts[host], "next", f"10.9.{100 + host}.1", self.hosts[(host + 1) % 4], "before", f"10.9.{100 + host}.2",
                         self.rates["host_mbit"])
        for host in range(4):
            for distance, gateway in ((1, f"10.9.{100 + host}.2"), (2, f"10.9.{100 + host}.2"), (3, f"10.9.{100 + (host - 1) % 4}.1")):
                run("ip", "-n", self.space(self.hosts[host]), "route", "add", f"{self.address((host + distance) % 4)}/32", "via", gateway,
                    "src", self.address(host))


class Beside:
    """A program of two_racks/ in each host, which takes orders by its standard input."""

    def __init__(self, network, program, port):
        words = [sys.executable, PROGRAMS / program, port]
        self.processes = [subprocess.Popen(network.inside(host, *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                          for host in network.hosts]
        for process in self.processes:
            process.stdout.readline()

    def order(self, orders):
        for process, order in zip(self.processes, orders):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()

    def answers(self):
        return [json.loads(process.stdout.readline()) for process in self.processes]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


class Lab:
    """What all parts need."""

    def __init__(self, options):
        self.options = options

    @contextlib.contextmanager
    def services(self, network, more=()):
        with network, tempfile.TemporaryDirectory(prefix="collectives-") as folder:
            with Services(network, self.options.tidemill, self.options.member, folder, more) as services:
                yield services

    def two_racks(self, **more):
        return Network(self.options.host_mbit, self.options.spine_mbit, **more)

    def ask(self, program, question):
        """The answer of an example to a question in JSON."""
        path = self.options.programs / "examples" / program
        done = subprocess.run([path], input=json.dumps(question), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{path}: {done.stderr.strip()}")
        return json.loads(done.stdout)


def all_reduce(lab):
    options = lab.options
    contests = [contest for contest in CONTESTS if contest[0] in options.contenders]
    runs = []
    with lab.two_racks() as network:
        for trial in range(options.trials):
            options.sizes = SMALL_SIZES + (LARGE_SIZES if trial == 0 else [])
            for per_host in (1, 2):
                for name, order in contests:
                    runs.append(two_racks.measured(options, network, name, order, per_host, trial))
    rows = []
    for per_host in (1, 2):
        for name, order in contests:
            of = [one for one in runs if (one["contender"], one["order"], one["ranks"]) == (name, order, 4 * per_host)]
            for size in SMALL_SIZES + LARGE_SIZES:
                found = [row for one in of for row in one.get("results", []) if row["bytes"] == size]
                if found:
                    medians = [row["p50"] for row in found]
                    rows.append({"contender": name, "order": order, "ranks": 4 * per_host, "bytes": size, "trials": len(found),
                                 "p50": statistics.median(medians), "least": min(medians), "most": max(medians),
                                 "p99": max(row["p99"] for row in found)})
    errors = [f"{one['contender']}, {one['ranks']} ranks: {one['error']}" for one in runs if "error" in one]
    with lab.services(lab.two_racks()) as services:
        with Group(services, "one-host", [0, 0]) as group:
            alone = statistics.median(group.slowest("all-reduce", KIB, 200, 20))
        with Group(services, "two-hosts", [0, 2]) as group:
            pair = statistics.median(group.slowest("all-reduce", KIB, 200, 20))
    return {"rows": rows, "versions": sorted({one["version"] for one in runs if "version" in one}), "errors": errors,
            "floor": {"one_host": alone, "two_hosts": pair}}


def jobs(groups):
    """Runs the jobs of some groups side by side: each a group, bytes, milliseconds of computation, seconds and iterations. Returns the
    operations of rank 0 of each."""
    for group, *work in groups:
        group.begin("job", *work)
    return [group.end()[0] for group, *_ in groups]


def crossings(strategy):
    """The path of each ring between the racks. Without one it is left to a hash; then it is none."""
    return [next((path for path in channel["paths"] if path), None) for channel in strategy["channels"]]


def order(groups, policies):
    for (group, *_), policy in zip(groups, policies):
        group.strategy(policy)


def lasted(operations):
    return operations[-1][0] + operations[-1][1] - operations[0][0]


# A group that is like VGG, and two that are like GPT: bytes and milliseconds, as published, with a thousandth of the bytes.
VGG, GPT = (574_668, 160), (83_886, 6)
# Hosts and priority of each tenant: A has two ranks on one host of each rack, B and C one on the other hosts.
TENANTS = {"A": ([0, 0, 2, 2], "high", VGG), "B": ([1, 3], "normal", GPT), "C": ([1, 3], "bulk", GPT)}
# A ends first, B at about the same time and C at twice that, as published with `ffa`: A is never alone.
ITERATIONS = {"A": 30, "B": 500, "C": 950}


def tenants(lab):
    pairs, three = [], []
    for trial in range(2 * lab.options.trials):
        for policy in ("locality", "ffa"):
            with lab.services(lab.two_racks()) as services, contextlib.ExitStack() as stack:
                groups = [(stack.enter_context(Group(services, name, [0, 1, 2, 3])), MIB, 0, 5, 0) for name in ("one", "other")]
                order(groups, [policy] * 2)
                rates = [MIB * len(operations) / lasted(operations) for operations in jobs(groups)]
                pairs.append({"policy": policy, "trial": trial, "rates": rates})
                print(f"two tenants, {policy}: {' '.join(f'{rate / 1e6:.2f}' for rate in rates)} MB/s", flush=True)
    for trial in range(lab.options.trials):
        for name in ("locality", "ffa", "pfa", "ts"):
            with lab.services(lab.two_racks()) as services, contextlib.ExitStack() as stack:
                groups = []
                for tenant, (hosts, priority, work) in TENANTS.items():
                    group = stack.enter_context(Group(services, tenant, hosts, priority if name in ("pfa", "ts") else "normal"))
                    groups.append((group, *work, 0, ITERATIONS[tenant]))
                order(groups, [name] * 3)
                rings = [crossings(services.show(tenant)["strategy"]) for tenant in TENANTS]
                found = jobs(groups)
                seen = [services.show(tenant) for tenant in TENANTS]
                # What A would take if links were divided evenly among flows at each moment, and nothing else took time.
                shared = tenant_shares.seconds([(rings[place], 2 * (len(hosts) - 1) / len(hosts) * work[0], work[1] / 1e3, ITERATIONS[tenant])
                                                for place, (tenant, (hosts, _, work)) in enumerate(TENANTS.items())],
                                               lab.options.spine_mbit * 1e6 / 8 * PAYLOAD)
                three.append({"policy": name, "trial": trial, "seconds": [lasted(operations) for operations in found], "rings": rings, "shared": shared,
                              "held": [one["figures"]["held_us"] / 1e6 for one in seen], "reasons": [one["reasons"][0] for one in seen]})
                print(f"three tenants, {name}: {' '.join(f'{seconds:.2f}' for seconds in three[-1]['seconds'])} s, by shares "
                      f"{' '.join(f'{seconds:.2f}' for seconds in shared)} s, held {' '.join(f'{held:.2f}' for held in three[-1]['held'])} s", flush=True)
    return {"pairs": pairs, "three": three, "iterations": list(ITERATIONS.values())}


def background(lab):
    """Rates of a group before others send, while they do, and after the ring was reversed."""
    phase, mbit, found = 5, lab.options.host_mbit, []
    for trial in range(lab.options.trials):
        with lab.services(Ring(mbit)) as services, Beside(services.network, "background.py", BACKGROUND_PORT) as others, \
                Group(services, "ring", [0, 1, 2, 3]) as group:
            group.strategy("locality")
            group.begin("job", MIB, 0, 3 * phase, 0)
            time.sleep(phase)
            loaded = time.time()
            others.order([{services.network.address(1): 0.75 * mbit * 1e6 / 8}])
            time.sleep(phase)
            ordered = time.time()
            group.strategy("locality:reversed")
            operations = [(begun, begun + seconds) for begun, seconds in group.end()[0]]
            rate = lambda since, until: MIB / statistics.median(end - begun for begun, end in operations if begun >= since and end <= until)
            # The first operation that begins after the order ends by the old ring or by the new one; the next one is new.
            after = [end - begun for begun, end in operations if begun >= ordered]
            found.append({"before": rate(0, loaded), "loaded": rate(loaded, ordered), "reversed": MIB / statistics.median(after[1:]),
                          "second": MIB / after[1]})
            print("background: " + ", ".join(f"{name} {value / 1e6:.2f} MB/s" for name, value in found[-1].items()), flush=True)
    return {"rows": found}


def change(lab):
    """How much longer sums take during which the strategy changes."""
    rows = []
    with lab.services(lab.two_racks()) as services, Group(services, "changing", [0, 1, 2, 3]) as group:
        for size in (64 * KIB, MIB):
            group.strategy("locality")
            group.begin("job", size, 0, lab.options.changes * 0.6, 0)
            ordered = []
            draw = random.Random(size)
            for number in range(lab.options.changes):
                time.sleep(draw.uniform(0, 0.2))
                at = time.time()
                group.strategy(("locality:reversed", "locality")[number % 2])
                ordered.append((at, time.time()))
            answers = group.end()
            # Of each operation: when the first rank began, and how long the slowest took.
            operations = [(min(one[0] for one in of), max(one[1] for one in of)) for of in zip(*answers)]
            touched = lambda operation, span: operation[0] < span[1] and operation[0] + operation[1] > span[0]
            quiet = [seconds for begun, seconds in operations if not any(touched((begun, seconds), span) for span in ordered)]
            stalls = []
            for span in ordered:
                during = [seconds for begun, seconds in operations if touched((begun, seconds), span)]
                if during:
                    stalls.append(max(during) - statistics.median(quiet))
            rows.append({"bytes": size, "changes": len(stalls), "operations": len(operations), "usual": statistics.median(quiet),
                         "p50": percentile(stalls, 0.5), "p99": percentile(stalls, 0.99)})
            print(f"change: {size} B, {len(stalls)} changes, {rows[-1]['p50'] * 1e3:.0f} ms p50, {rows[-1]['p99'] * 1e3:.0f} ms p99", flush=True)
    return {"rows": rows}


# Congestion control of connections between ranks, and how long a link lets packets wait. The first one is what all strategies are measured
# with, the others say what dropped packets and the congestion control of this system cost. (none: that of the system)
USUAL = ("cubic", "40ms")
OTHERS = (("cubic", "400ms"), (None, "40ms"), (None, "400ms"))
# Spines, how many times faster hosts are, and strategies. Without a choice of spines where strategies leave it to the system; with hosts
# that are as fast as both spines together, and twice as fast.
PREDICTED = (((), 1, ("rank-order", "locality")), (two_racks.SPINES, 1, ("ffa",)), (two_racks.SPINES, 2, ("ffa",)))


def system_congestion():
    return pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="utf-8").strip()


def predicted(lab, services, hosts, made, step, operations):
    """Seconds of operations as the service expects them, with the step of this machine."""
    network = services.network
    mbit = lambda name: network.rates[name] * 1e6 / 8
    paths = [{"name": name, "rate": mbit("spine_mbit")} for name in network.spines]
    racks = [f"rack-{rack}" for rack in network.racks]
    return lab.ask("predict", {
        "hosts": [{"name": name, "rack": rack, "paths": paths} for name, rack in zip(network.hosts, racks)],
        "ranks": [[rank, network.hosts[host]] for rank, host in enumerate(hosts)],
        "rates": {name: mbit("host_mbit") for name in network.hosts}, "rack_rates": {rack: mbit("spine_mbit") for rack in racks},
        "step": step, "strategy": made, "operations": operations})


def prediction(lab):
    """Predicted and measured times."""
    rows = []
    for congestion, queue in (USUAL, *OTHERS):
        for spines, times, strategies in PREDICTED:
            network = Network(times * lab.options.host_mbit, lab.options.spine_mbit, spines=spines, queue=queue)
            more = ["--rate", f"{network.rates['host_mbit']}Mbps", "--rack-rate", f"{network.rates['spine_mbit']}Mbps"]
            more += ["--group-congestion", congestion] if congestion else []
            with lab.services(network, more) as services:
                for per_host in (1, 2):
                    hosts = [two_racks.ORDERS["crossing"][rank % 4] for rank in range(4 * per_host)]
                    with Group(services, f"predicted-{per_host}", hosts) as group:
                        for strategy in strategies:
                            group.strategy(strategy)
                            made = services.show(group.name)["strategy"]
                            # A sum of one word goes by doubling: one step after another, without bytes.
                            step = statistics.median(group.slowest("all-reduce", 4, 50, 5)) / len(hosts).bit_length()
                            wanted = [(operation, mib * MIB) for operation in ("all-reduce", "broadcast") for mib in (2, 4)]
                            if (congestion, queue) != USUAL:
                                wanted = [one for one in wanted if one[1] == 4 * MIB]
                            for (operation, size), seconds in zip(wanted, predicted(lab, services, hosts, made, step, wanted)):
                                before = network.sent_again()
                                measured = statistics.median(group.slowest(operation, size, 5))
                                dropped, again = (after - first for after, first in zip(network.sent_again(), before))
                                trees = (made.get("all_reduce" if operation == "all-reduce" else "broadcast") or {"trees": [], "most": 0})
                                by_tree = bool(trees["trees"]) and (trees.get("most") is None or size <= trees["most"])
                                rows.append({"ranks": len(hosts), "strategy": strategy, "spines": len(spines), "host_mbit": network.rates["host_mbit"],
                                             "operation": operation, "by_tree": by_tree, "bytes": size, "measured": measured, "predicted": seconds,
                                             "congestion": congestion or system_congestion(), "queue": queue, "dropped": dropped, "again": again})
                                print(f"prediction: {rows[-1]['congestion']} {queue} {network.rates['host_mbit']} Mbit/s, {len(hosts)} {strategy} {operation}"
                                      f"{' by tree' if by_tree else ''} {size} B: {seconds * 1e3:.0f} ms, measured {measured * 1e3:.0f} ms "
                                      f"({100 * (seconds / measured - 1):+.1f} %), {dropped} dropped, {again} sent again", flush=True)
    return {"rows": rows, "usual": USUAL}


# Parts of a thousand of the packets from one rack to the other by one link that are dropped.
LOST = (0, 1, 10)


def loss(lab):
    """Sums and broadcasts while one link drops packets, by two congestion controls. Ranks compare each element of each result."""
    rows = []
    for congestion in ("cubic", "bbr"):
        network = lab.two_racks(spines=())
        more = ["--rate", f"{lab.options.host_mbit}Mbps", "--rack-rate", f"{lab.options.spine_mbit}Mbps", "--group-congestion", congestion]
        with lab.services(network, more) as services, Group(services, "lossy", range(4)) as group:
            for host in network.hosts:
                # A packet that is lost is one packet, and not all that one call has sent.
                run("ip", "-n", network.space(host), "link", "set", "dev", "eth0", "gso_max_segs", 1)
            group.strategy("locality")
            nft = lambda *words: run(*network.inside(two_racks.LEAVES[0], "nft", *words))
            for part in LOST:
                nft("add table ip lossy; flush table ip lossy; add counter ip lossy lost")
                nft("add chain ip lossy forward { type filter hook forward priority 0; }")
                if part:
                    nft(f"add rule ip lossy forward oifname u0 numgen random mod 1000 < {part} counter name lost drop")
                found = {"congestion": congestion, "part": part / 1000}
                for operation in ("all-reduce", "broadcast"):
                    found[operation] = statistics.median(group.slowest(operation, MIB, 10))
                [lost] = [one["counter"]["packets"] for one in json.loads(nft("-j", "list", "counters"))["nftables"] if "counter" in one]
                if part and not lost:
                    raise OSError(f"the link lost none of the packets of which it was to lose {part} of 1000")
                links = services.net("hints")["hints"]["links"]
                wrong = [link for link in links if not 0 <= link["residual"] <= link["total"] or not 0 < link["estimate"] <= 1.01 * link["total"]]
                if wrong or not links:
                    raise OSError(f"hints that cannot be, or none: {wrong}")
                [link] = [link for link in links if link["host"] is None and link["rack"] == "rack-0" and link["way"] == "up"]
                found |= {"lost": lost, "free": link["residual"], "total": link["total"], "flows": link["sharers"], "estimate": link["estimate"]}
                rows.append(found)
                print(f"loss: {found}", flush=True)
    return {"rows": rows}


# Two racks of three hosts: hosts together have three times what leads out of their rack.
HINTS_MBIT = 40
WINDOWS = 16


def drawn_background(network, draw):
    """What each host sends to whom: up to half of a link, as parts that are drawn by a power law; a fifth of the hosts nothing."""
    orders, used = [], []
    for host in range(len(network.hosts)):
        part = draw.choices(range(6), [(tens + 1) ** -1.5 for tens in range(6)])[0] / 10
        other = draw.choice([one for one in range(len(network.hosts)) if one != host])
        # What is sent between racks must leave something of their link.
        if network.racks[host] != network.racks[other] and sum(
                rate for of, to, rate in used if network.racks[of] == network.racks[host] != network.racks[to]) + part > 0.5:
            part = 0
        used.append((host, other, part))
        orders.append({network.address(other): part * HINTS_MBIT * 1e6 / 8})
    return orders


def loads(network, seconds=0.5):
    """Rate, what is free, and sharers of each link as hints number them, by the counters of interfaces: hosts, then racks."""
    ends = [(host, "eth0") for host in network.hosts] + [(leaf, "u0") for leaf in two_racks.LEAVES]

    def counters():
        links = [json.loads(run("ip", "-n", network.space(node), "-s", "-j", "link", "show", "dev", device))[0]["stats64"]
                 for node, device in ends]
        return [link[way]["bytes"] for link in links for way in ("tx", "rx")]

    before, begun = counters(), time.monotonic()
    time.sleep(seconds)
    carried, taken = counters(), time.monotonic() - begun
    total = HINTS_MBIT * 1e6 / 8
    rates = [(after - first) / taken for first, after in zip(before, carried)]
    return [(total, max(0.0, total - rate), float(rate > total / 50)) for rate in rates]


def drawn_exchange(draw, hosts):
    """Four tasks that send from hosts of their own, four that receive, and how much; two tasks fit on a host."""
    senders = draw.sample(range(hosts), 4)
    weights = [(place + 1) ** -1.0 for place in range(4)]
    draw.shuffle(weights)
    transfers = [(one, 4 + other, 2.5 * MIB * weights[other] / sum(weights) / 4) for one in range(4) for other in range(4)]
    return {"fixed": senders + [None] * 4, "slots": [2] * hosts, "transfers": transfers}


def default_placement(draw, exchange):
    """Receivers on free slots, as they come."""
    free = [host for host, slots in enumerate(exchange["slots"]) for _ in range(slots - exchange["fixed"].count(host))]
    return [host for host in exchange["fixed"] if host is not None] + draw.sample(free, 4)


def exchanged(network, programs, exchange, machines):
    """Seconds of an exchange with tasks on these machines."""
    orders = [[] for _ in network.hosts]
    for one, other, size in exchange["transfers"]:
        if machines[one] != machines[other]:
            orders[machines[one]].append((network.address(machines[other]), int(size)))
    programs.order(orders)
    answers = programs.answers()
    return max(end for _, end in answers) - min(begun for begun, _ in answers)


def hints(lab):
    draw = random.Random(6)
    rows = []
    network = Network(HINTS_MBIT, HINTS_MBIT, per_rack=3, spines=())
    # Where services count themselves, they also plan from that, by the strategy `hints`.
    counts = "--rack-rate" in run(lab.options.tidemill, "net", "serve", "--help")
    rates = f"up={HINTS_MBIT}Mbps,down={HINTS_MBIT}Mbps"
    with lab.services(network, ["--rate", rates, "--rack-rate", rates] if counts else []) as services, Group(services, "hinted", range(6)) as group, \
            Beside(network, "background.py", BACKGROUND_PORT) as others, Beside(network, "exchange.py", EXCHANGE_PORT) as tasks:
        for window in range(WINDOWS):
            others.order(drawn_background(network, draw))
            time.sleep(0.3)
            exchange = drawn_exchange(draw, 6)
            chosen = lab.ask("choose", {"racks": network.racks, "loads": loads(network), "own": 1, "roots": [0], "exchanges": [exchange]})
            row = {"window": window, "chosen": chosen}
            rings = {"random": draw.sample(range(6), 6), "topology": list(range(6)), "hints": chosen["rings"][0][0]}
            strategies = {name: "ring:" + ",".join(map(str, ring)) for name, ring in rings.items()}
            strategies |= {"service": "hints"} if counts else {}
            placements = {"random": default_placement(draw, exchange), "hints": chosen["placements"][0]}
            for name in draw.sample(sorted(strategies), len(strategies)):
                group.strategy(strategies[name])
                for operation in ("all-reduce", "broadcast"):
                    row[f"{operation} {name}"] = statistics.median(group.slowest(operation, 512 * KIB, 2))
            for name in draw.sample(sorted(placements), 2):
                row[f"exchange {name}"] = exchanged(network, tasks, exchange, placements[name])
            rows.append(row)
            print(f"hints: window {window}: " + ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in row.items() if name not in ("window", "chosen")), flush=True)
    return {"rows": rows}


PARTS = {"all-reduce": all_reduce, "tenants": tenants, "background": background, "change": change, "prediction": prediction, "loss": loss, "hints": hints}


PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables"}


def missing(options):
    """What is not there, with the command that brings it."""
    found = []
    if os.geteuid() != 0:
        found.append("it makes network namespaces: start it as root, for instance with `sudo -E make bench BENCH=collectives`")
    for program in ("ip", "tc", "gcc", *(("nft",) if "loss" in options.only else ())):
        if two_racks.shutil.which(program) is None:
            found.append(f"{program} is missing: apt-get install {PACKAGES.get(program, program)}")
    needed = {"tidemill": "-p tidemill --bin tidemill", "examples/member": "-p tidemill-collective --example member",
              "examples/predict": "-p tidemill-collective --example predict", "examples/choose": "-p tidemill-hints --example choose"}
    for program, package in needed.items():
        if not (options.programs / program).exists():
            found.append(f"{options.programs / program} is missing: cargo build --release --locked {package}")
    if "all-reduce" in options.only:
        for name in two_racks.RIVALS:
            if name in options.contenders:
                try:
                    two_racks.CONTENDERS[name](options).version()
                except (OSError, TypeError):
                    found.append(f"{name} is missing: python3 benches/experiments/two_racks.py --install --contenders {name} "
                                 f"--tools {options.tools}, or leave rivals out with --without-rivals")
    return found


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    only = lambda text: [word for word in text.split(",") if word in PARTS or sys.exit(f"{word}: one of {', '.join(PARTS)}")]
    arguments.add_argument("--only", default=list(PARTS), type=only)
    arguments.add_argument("--trials", default=2, type=int)
    arguments.add_argument("--changes", default=100, type=int)
    arguments.add_argument("--host-mbit", default=100, type=int)
    arguments.add_argument("--spine-mbit", default=50, type=int)
    arguments.add_argument("--tools", default=REPOSITORY / ".tidemill/two_racks", type=pathlib.Path)
    arguments.add_argument("--without-rivals", action="store_true")
    arguments.add_argument("--programs", default=REPOSITORY / "target/release", type=pathlib.Path)
    arguments.add_argument("--out", default=REPOSITORY / "docs/benchmarks", type=pathlib.Path)
    options = arguments.parse_args()
    options.tools, options.programs = options.tools.absolute(), options.programs.absolute()
    options.tidemill, options.member = options.programs / "tidemill", options.programs / "examples/member"
    options.contenders = [name for name in two_racks.CONTENDERS if not (options.without_rivals and name in two_racks.RIVALS)]
    options.iterations, options.least, options.unmeasured, options.budget = 20, 1, 1, 4 * MIB
    options.system, options.random = False, random.Random(1)
    if lacks := missing(options):
        print("collectives.py: " + "\n".join(lacks), file=sys.stderr)
        return 1
    for number in two_racks.SIGNALS:
        two_racks.signal.signal(number, two_racks.interrupted)
    try:
        with Network(options.host_mbit, options.spine_mbit) as network:
            if faults := two_racks.check(network):
                print("collectives.py: " + "\n".join(faults), file=sys.stderr)
                return 1
    except OSError as error:
        print(f"collectives.py: no namespaces here: {error}", file=sys.stderr)
        return NOT_PERMITTED
    file = options.out / "collectives.json"
    document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"parts": {}}
    failed, lab = False, Lab(options)
    for name in options.only:
        begun, facts = time.monotonic(), two_racks.machine()
        try:
            found = PARTS[name](lab)
        except (OSError, ValueError) as error:
            print(f"collectives.py: {name}: {error}", file=sys.stderr)
            failed = True
            continue
        failed = failed or bool(found.get("errors"))
        document["parts"][name] = found | {
            "date": datetime.date.today().isoformat(), "machine": facts, "load_at_end": os.getloadavg()[0], "commit": commit(), "build": options.programs.name,
            "network": {"host_mbit": options.host_mbit, "spine_mbit": options.spine_mbit}, "trials": options.trials,
            "minutes": (time.monotonic() - begun) / 60}
        # What is done stays done if a later part is interrupted.
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (options.out / "collectives.md").write_text(collectives_page.page(document["parts"]), encoding="utf-8")
    return 1 if failed else 0


def commit():
    done = subprocess.run(["git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
