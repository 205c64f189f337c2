#!/usr/bin/env python3
"""All-reduce over two racks: rivals, and ours, on the same shaped links.

    python3 benches/experiments/two_racks.py [--contenders openmpi,gloo,pccl,rank-order,random,locality,ffa] [--ranks-per-host 1,2]
        [--orders crossing,racks] [--host-mbit 100] [--spine-mbit 50] [--sizes 1KiB,64KiB,1MiB,16MiB] [--iterations 50] [--trials 1]
        [--tidemill target/release/tidemill] [--member target/release/examples/member] [--out FILE]
    python3 benches/experiments/two_racks.py --install [--contenders ...]     fetches the rivals into --tools FOLDER, and ends
    python3 benches/experiments/two_racks.py --check                          whether ports choose spines, and links keep their rates
    python3 benches/experiments/two_racks.py --hold                           the network only, until standard input ends

Hosts h0 and h1 are one rack, h2 and h3 the other. Each rack has a leaf, and each leaf a link to each of two spines. All
are network namespaces of this machine. Leaves choose the spine by a hash of addresses and ports, except for TCP connections
with a port of 20000-20999 (first spine) or 21000-21999 (second spine).

Ranks are laid on hosts in one of two orders. `crossing`: each hop of a ring in the order of ranks goes to the other rack.
`racks`: one rack after the other. PCCL chooses its ring itself. A time is that of the slowest rank of an iteration; `rate` is
the size divided by the median. Of large sizes fewer iterations run (--least), so that their p99 is the slowest one. What
each uplink carried stands beside the times.

Contenders named as strategies are `tidemill net serve` in each host, with a program for each rank (`runtime/collective/examples/member.rs`);
`random` is one ring in random order, another one in each trial. The others are rivals.

Rivals come from registries: Open MPI from Debian's packages, unpacked into the folder and not installed (`--system`: the one
that is installed), Gloo in PyTorch (3 GB), and PCCL, with libraries of C++ of the next Debian if those here are too old.
Writes JSON to FILE. Wants root, ip, tc; exit code 77 where namespaces are not permitted, 1 if a contender failed.
"""
import argparse
import contextlib
import functools
import json
import os
import pathlib
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from group_services import Tidemill

PROGRAMS = pathlib.Path(__file__).resolve().with_name("two_racks")
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
LEAVES, SPINES = ("l0", "l1"), ("s0", "s1")
# The rack of a host is that of its position.
ORDERS = {"crossing": (0, 2, 1, 3), "racks": (0, 1, 2, 3)}
PORTS = {"s0": (20000, 20999), "s1": (21000, 21999)}
PREFIX = "tmracks"
MASTER_PORT = 17000
NOT_PERMITTED = 77
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Seconds that a contender may take.
PATIENCE = 900
DEBIAN = """openmpi-bin openmpi-common libopenmpi3 libopenmpi-dev libhwloc15 libevent-core-2.1-7 libevent-pthreads-2.1-7 libpmix2 libucx0
libfabric1 libpsm-infinipath1 libpsm2-2 librdmacm1 libibverbs1 libnl-3-200 libnl-route-3-200 libmunge2 libltdl7""".split()
CUDA = """cuCtxSetCurrent cuDeviceGet cuDevicePrimaryCtxRetain cuGetErrorName cuGetErrorString cuMemAlloc_v2 cuMemFree_v2 cuMemcpyDtoH_v2
cuMemcpyHtoD_v2 cuPointerGetAttribute cuStreamSynchronize""".split()
NEXT_DEBIAN = "http://deb.debian.org/debian trixie"
TORCH, PCCL = "torch==2.13.0", "pypccl==1.0.0"


def run(*words, **more):
    """Output of a command that must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout


class Network:
    """The namespaces, links and routes. Without spines there is no choice of a path: a cable joins the leaves. A link drops what would wait
    for longer than `queue`."""

    def __init__(self, host_mbit, spine_mbit, per_rack=2, spines=SPINES, queue="40ms"):
        self.queue = queue
        self.prefix = f"{PREFIX}{os.getpid()}_"
        self.rates = {"host_mbit": host_mbit, "spine_mbit": spine_mbit}
        self.hosts = tuple(f"h{number}" for number in range(2 * per_rack))
        self.racks = [host // per_rack for host in range(2 * per_rack)]
        self.spines = spines

    def space(self, node):
        return self.prefix + node

    def inside(self, node, *words):
        return ["ip", "netns", "exec", self.space(node), *map(str, words)]

    def address(self, host):
        return f"10.9.{host}.2"

    def __enter__(self):
        try:
            self.create()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def create(self):
        self.add(self.hosts + LEAVES + self.spines)
        for host, node in enumerate(self.hosts):
            self.connect(node, "eth0", f"10.9.{host}.2", LEAVES[self.racks[host]], f"d{host}", f"10.9.{host}.1", self.rates["host_mbit"])
            run("ip", "-n", self.space(node), "route", "add", "default", "via", f"10.9.{host}.1")
        if not self.spines:
            self.connect(LEAVES[0], "u0", "10.9.100.1", LEAVES[1], "u0", "10.9.100.2", self.rates["spine_mbit"])
            for rack, leaf in enumerate(LEAVES):
                for net in self.nets(1 - rack):
                    run("ip", "-n", self.space(leaf), "route", "add", net, "via", f"10.9.100.{2 - rack}")
            return
        for rack, leaf in enumerate(LEAVES):
            gateways = []
            for number, spine in enumerate(self.spines):
                net = f"10.9.{100 + 2 * rack + number}"
                self.connect(leaf, f"u{number}", f"{net}.1", spine, f"p{rack}", f"{net}.2", self.rates["spine_mbit"])
                for own in self.nets(rack):
                    run("ip", "-n", self.space(spine), "route", "add", own, "via", f"{net}.1")
                gateways.append(f"{net}.2")
                for other in self.nets(1 - rack):
                    run("ip", "-n", self.space(leaf), "route", "add", other, "via", gateways[-1], "table", str(100 + number))
                for end in ("sport", "dport"):
                    run("ip", "-n", self.space(leaf), "rule", "add", "ipproto", "tcp", end, "-".join(map(str, PORTS[spine])), "lookup",
                        str(100 + number))
            hops = [word for gateway in gateways for word in ("nexthop", "via", gateway, "weight", "1")]
            for other in self.nets(1 - rack):
                run("ip", "-n", self.space(leaf), "route", "add", other, *hops)

    def add(self, nodes):
        """Adds namespaces that pass packets on."""
        remove_abandoned()
        for node in nodes:
            run("ip", "netns", "add", self.space(node))
            run("ip", "-n", self.space(node), "link", "set", "lo", "up")
            run(*self.inside(node, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0",
                             "net.ipv4.conf.default.rp_filter=0", "net.ipv4.fib_multipath_hash_policy=1",
                             "net.ipv4.tcp_slow_start_after_idle=0"))

    def nets(self, rack):
        return [f"10.9.{host}.0/24" for host, of in enumerate(self.racks) if of == rack]

    def paths(self):
        """Paths between racks, as a service is told of them."""
        return [f"{spine}={PORTS[spine][0]}-{PORTS[spine][1]},{self.rates['spine_mbit']}Mbps" for spine in self.spines]

    def connect(self, one, interface, address, other, peer, peer_address, mbit):
        """A cable whose directions are shaped apart."""
        run("ip", "link", "add", interface, "netns", self.space(one), "type", "veth", "peer", "name", peer, "netns", self.space(other))
        for node, name, own in ((one, interface, address), (other, peer, peer_address)):
            run("ip", "-n", self.space(node), "addr", "add", f"{own}/24", "dev", name)
            run("ip", "-n", self.space(node), "link", "set", name, "up")
            run("tc", "-n", self.space(node), "qdisc", "add", "dev", name, "root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb",
                "latency", self.queue)

    def sent_again(self):
        """Packets that links have dropped, and segments that hosts have sent again."""
        dropped = sum(queue.get("drops", 0) for node in self.hosts + LEAVES + self.spines
                      for queue in json.loads(run("tc", "-n", self.space(node), "-s", "-j", "qdisc")))
        counters = [run(*self.inside(host, "cat", "/proc/net/snmp")) for host in self.hosts]
        again = 0
        for text in counters:
            names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
            again += int(dict(zip(names, values))["RetransSegs"])
        return dropped, again

    def uplinks(self):
        """Bytes that each leaf has sent to each spine."""
        found = {}
        for leaf in LEAVES:
            for number, spine in enumerate(self.spines or ("",)):
                link = json.loads(run("ip", "-n", self.space(leaf), "-s", "-j", "link", "show", "dev", f"u{number}"))
                found[f"{leaf}-{spine}"] = link[0]["stats64"]["tx"]["bytes"]
        return found

    def stop_all(self):
        """Ends what runs in the hosts."""
        for host in self.hosts:
            kill_inside(self.space(host))

    def remove(self):
        remove_spaces(self.prefix)


def kill_inside(space):
    with contextlib.suppress(OSError):
        for pid in run("ip", "netns", "pids", space).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def spaces():
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.startswith(PREFIX)]


def remove_spaces(prefix):
    """Removes the namespaces of a run, with what still runs in them."""
    for space in spaces():
        if space.startswith(prefix):
            kill_inside(space)
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)


def remove_abandoned():
    """Removes what runs that were killed have left: their names have the process id of a program that is gone."""
    for prefix in {match.group(0) for space in spaces() if (match := re.match(rf"{PREFIX}(\d+)_", space))}:
        if not pathlib.Path(f"/proc/{prefix.removeprefix(PREFIX).rstrip('_')}").exists():
            remove_spaces(prefix)


class Case:
    """A layout of ranks, and what they are to do."""

    def __init__(self, network, order, per_host, sizes, unmeasured, folder):
        self.network, self.sizes, self.unmeasured, self.out = network, sizes, unmeasured, folder / "times"
        hosts = ORDERS[order]
        self.hosts = [hosts[rank % 4] for rank in range(4 * per_host)] if order == "crossing" else \
            [hosts[rank // per_host] for rank in range(4 * per_host)]
        self.ranks = len(self.hosts)
        self.master = f"{network.address(self.hosts[0])}:{MASTER_PORT}"
        self.folder = folder

    def start(self, rank, *words, environment=None):
        """A process of a rank."""
        log = open(self.folder / f"log.{rank}", "w", encoding="utf-8")
        return subprocess.Popen(self.network.inside(self.network.hosts[self.hosts[rank]], *words), env=environment, stdout=log, stderr=log)

    def wait(self, processes):
        deadline = time.monotonic() + PATIENCE
        for process in processes:
            try:
                code = process.wait(timeout=max(1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = f"no end after {PATIENCE} s"
            if code != 0:
                said = "\n".join(log.read_text(encoding="utf-8")[-400:] for log in sorted(self.folder.glob("log.*")))
                raise OSError(f"exit code {code}\n{said}")

    def results(self):
        """For each size, times of the slowest rank."""
        ranks = [[json.loads(line) for line in open(f"{self.out}.{rank}", encoding="utf-8")] for rank in range(self.ranks)]
        found = []
        for rows in zip(*ranks):
            seconds = sorted(max(times) for times in zip(*(row["seconds"] for row in rows)))
            median = statistics.median(seconds)
            found.append({"bytes": rows[0]["bytes"], "iterations": len(seconds), "p50": median,
                          "p99": seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))], "rate": rows[0]["bytes"] / median})
        return found


class OpenMpi:
    """MPI_Allreduce; daemons on hosts are started through namespaces instead of ssh."""

    def __init__(self, options):
        self.tools, self.is_installed = options.tools / "mpi", options.system

    def install(self):
        if self.is_installed:
            run("apt-get", "install", "-y", "--no-install-recommends", "openmpi-bin", "libopenmpi-dev")
            return
        packages, root = self.tools / "debs", self.tools / "root"
        packages.mkdir(parents=True, exist_ok=True)
        run("nice", "-n", "19", "apt-get", "download", *DEBIAN, cwd=packages)
        for package in packages.glob("*.deb"):
            run("dpkg", "-x", package, root)

    def environment(self):
        if self.is_installed:
            return dict(os.environ)
        usr = self.tools / "root/usr"
        libraries = usr / f"lib/{platform.machine()}-linux-gnu"
        inner = [libraries, libraries / "openmpi/lib", libraries / "pmix2/lib", self.tools / "root/lib" / libraries.name]
        return dict(os.environ, OPAL_PREFIX=str(usr), PMIX_INSTALL_PREFIX=str(libraries / "pmix2"),
                    PATH=f"{usr}/bin:{os.environ['PATH']}", LD_LIBRARY_PATH=":".join(map(str, inner)))

    def command(self, name):
        return shutil.which(f"{name}.openmpi", path=self.environment()["PATH"]) or shutil.which(name)

    def version(self):
        return "Open MPI " + run(self.command("mpirun"), "--version", env=self.environment()).splitlines()[0].split()[-1]

    def compile(self, folder):
        include = [] if self.is_installed else [f"-I{self.tools}/root/usr/lib/x86_64-linux-gnu/openmpi/include"]
        libraries = self.environment().get("LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu/openmpi/lib").split(":")
        program = folder / "allreduce"
        if self.is_installed:
            run(self.command("mpicc"), "-O2", "-o", program, PROGRAMS / "allreduce.c")
        else:
            run("gcc", "-O2", "-o", program, PROGRAMS / "allreduce.c", *include, *(f"-L{path}" for path in libraries),
                "-Wl,--allow-shlib-undefined", "-lmpi")
        return program

    def run(self, case):
        program = self.compile(case.folder)
        environment = self.environment()
        # Each host gets a name and a folder of its own: on one machine Open MPI would take them all for the same one.
        agent = case.folder / "agent"
        cases = "\n".join(f"{case.network.address(host)}) space={case.network.space(node)} name={node};;" for host, node in enumerate(case.network.hosts))
        exports = " ".join(f"{name}='{environment[name]}'" for name in ("OPAL_PREFIX", "PMIX_INSTALL_PREFIX", "LD_LIBRARY_PATH",
                                                                         "PATH") if name in environment)
        agent.write_text(f"#!/bin/sh\ncase \"$1\" in\n{cases}\nesac\nshift\nmkdir -p {case.folder}/$name\n"
                         f"exec ip netns exec $space unshare -u sh -c 'hostname '$name'; export {exports.replace(chr(39), chr(34))} "
                         f"TMPDIR={case.folder}/'$name'; '\"$*\"\n", encoding="utf-8")
        agent.chmod(0o755)
        hostfile = case.folder / "hosts"
        per_host = case.ranks // len(case.network.hosts)
        hostfile.write_text("".join(f"{case.network.address(host)} slots={per_host}\n" for host in dict.fromkeys(case.hosts)),
                            encoding="utf-8")
        by = "node" if case.hosts[:2] != sorted(case.hosts)[:2] else "slot"
        words = [self.command("mpirun"), "--allow-run-as-root", "--hostfile", hostfile, "--map-by", by, "--bind-to", "none", "-np",
                 case.ranks]
        for name, value in {"plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": 1, "pml": "ob1", "btl": "tcp,self,vader",
                            "btl_tcp_if_include": "10.9.0.0/16", "oob_tcp_if_include": "10.9.0.0/16", "orte_keep_fqdn_hostnames": 1,
                            "mpi_yield_when_idle": 1, "btl_vader_single_copy_mechanism": "none"}.items():
            words += ["--mca", name, value]
        words += [program, case.out, case.unmeasured, *case.sizes]
        starter = f"hostname starter; mkdir -p {case.folder}/starter; TMPDIR={case.folder}/starter exec \"$@\""
        process = case.start(0, "unshare", "-u", "sh", "-c", starter, "sh", *words, environment=environment)
        case.wait([process])


class Python:
    """A rival that is a package: a process of Python for each rank."""

    def __init__(self, options):
        self.folder = options.tools / "python"
        self.python = self.folder / "bin/python"
        self.tools = options.tools

    def install(self):
        if not self.python.exists():
            run(sys.executable, "-m", "venv", self.folder)
        for words in self.PACKAGES:
            run("nice", "-n", "19", self.python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", *words)

    def interpreter(self):
        return [self.python]

    def environment(self):
        return dict(os.environ, PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1")

    def words(self, case, rank):
        return [*self.interpreter(), PROGRAMS / self.PROGRAM, case.master, rank, case.ranks, case.out, case.unmeasured, *case.sizes]


class Gloo(Python):
    """Gloo through PyTorch."""

    PACKAGES = [(TORCH, "numpy")]
    PROGRAM = "allreduce_gloo.py"

    def version(self):
        return "PyTorch " + run(self.python, "-c", "import torch; print(torch.__version__)").strip()

    def run(self, case):
        environment = dict(self.environment(), GLOO_SOCKET_IFNAME="eth0")
        case.wait([case.start(rank, *self.words(case, rank), environment=environment) for rank in range(case.ranks)])


class Pccl(Python):
    """PCCL. Its package asks for one version of Python, but is a library with declarations for cffi: others load it as well."""

    PACKAGES = [("numpy", "cffi"), ("--no-deps", "--python-version", "3.12", "--platform",
                                    "manylinux_2_17_x86_64", "--upgrade", "--target", "PCCL", PCCL)]
    PROGRAM = "allreduce_pccl.py"

    def install(self):
        folder = self.tools / "pccl"
        self.PACKAGES = [tuple(str(folder) if word == "PCCL" else word for word in words) for words in self.PACKAGES]
        super().install()
        # It is linked with the driver of a graphics card, which it does not call for memory of the host: here each call is an error.
        functions = "".join(f"int {name}(void) {{ return 999; }}\n" for name in CUDA)
        run("gcc", "-shared", "-fPIC", "-x", "c", "-o", folder / "libcuda.so.1", "-", input=functions)
        if subprocess.run([*self.interpreter(), "-c", "import pccl"], env=self.environment(), stderr=subprocess.DEVNULL,
                          check=False).returncode != 0:
            self.install_libraries()

    def install_libraries(self):
        """Libraries of C and C++ of the next Debian: those here are older than the ones that it was linked with."""
        state = self.tools / "next"
        for folder in ("state/lists/partial", "cache/archives/partial", "root"):
            (state / folder).mkdir(parents=True, exist_ok=True)
        (state / "sources").write_text(f"deb {NEXT_DEBIAN} main\n", encoding="utf-8")
        settings = {"Dir::Etc::sourcelist": state / "sources", "Dir::Etc::sourceparts": "-", "Dir::State": state / "state",
                    "Dir::State::status": "/var/lib/dpkg/status", "Dir::Cache": state / "cache", "APT::Sandbox::User": "root"}
        apt = ["nice", "-n", "19", "apt-get", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
        run(*apt, "update")
        run(*apt, "download", "libc6", "libstdc++6", "libgcc-s1", "libgomp1", cwd=state)
        for package in state.glob("*.deb"):
            run("dpkg", "-x", package, state / "root")

    def interpreter(self):
        libraries = self.tools / "next/root/usr/lib" / f"{platform.machine()}-linux-gnu"
        if not libraries.exists():
            return [self.python]
        return [*libraries.glob("ld-linux*"), "--library-path", f"{libraries}:{self.tools / 'pccl'}", self.python]

    def environment(self):
        return dict(super().environment(), PYTHONPATH=str(self.tools / "pccl"), LD_LIBRARY_PATH=str(self.tools / "pccl"))

    def version(self):
        return PCCL.replace("==", " ") if (self.tools / "pccl").exists() else run("false")

    def run(self, case):
        master = subprocess.Popen(case.network.inside(case.network.hosts[case.hosts[0]], *self.interpreter(), PROGRAMS / self.PROGRAM, case.master,
                                                       "master", 0), env=self.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            case.wait([case.start(rank, *self.words(case, rank), environment=self.environment()) for rank in range(case.ranks)])
        finally:
            master.kill()
            master.wait()


SENDER = """import socket, sys
connection = socket.create_server((sys.argv[1], int(sys.argv[2]))) if sys.argv[3] == "-" else None
if connection:
    print("ready", flush=True)
    accepted = connection.accept()[0]
    while accepted.recv(65536):
        pass
    accepted.sendall(b".")
else:
    link = socket.create_connection((sys.argv[1], int(sys.argv[2])), source_address=("", int(sys.argv[3])))
    link.sendall(bytes(int(sys.argv[4])))
    link.shutdown(socket.SHUT_WR)
    sys.exit(link.recv(1) != b".")
"""


def check(network, sent=4 << 20):
    """Sends from h0 to h2 by each spine; the faults that were found."""
    faults = []
    for spine, (first, _) in PORTS.items():
        words = [sys.executable, "-c", SENDER, network.address(2), MASTER_PORT]
        receiver = subprocess.Popen(network.inside("h2", *words, "-"), stdout=subprocess.PIPE)
        receiver.stdout.readline()
        before, begun = network.uplinks(), time.monotonic()
        run(*network.inside("h0", *words, first, sent))
        taken = time.monotonic() - begun
        receiver.wait()
        receiver.stdout.close()
        carried = {link: count - before[link] for link, count in network.uplinks().items()}
        rate = 8 * sent / taken / 1e6
        print(f"port {first}: {carried}, {rate:.1f} Mbit/s")
        if carried[f"l0-{spine}"] < sent or carried[f"l0-{'s1' if spine == 's0' else 's0'}"] > sent / 20:
            faults.append(f"port {first} does not lead to {spine}: {carried}")
        if rate > 1.1 * min(network.rates.values()):
            faults.append(f"{rate:.1f} Mbit/s is more than a link may carry")
    return faults


# A contender has install(), version() and run(case): the ranks write their times to `case.out`.RANK as the programs in two_racks do.
RIVALS = {"openmpi": OpenMpi, "gloo": Gloo, "pccl": Pccl}
CONTENDERS = RIVALS | {name: functools.partial(Tidemill, strategy=name) for name in ("rank-order", "random", "locality", "ffa")}


def size(text):
    number, unit = re.fullmatch(r"(\d+)(KiB|MiB|B)?", text).groups()
    return int(number) * {"KiB": 1 << 10, "MiB": 1 << 20}.get(unit, 1)


def interrupted(number, _):
    """Ends the program. A second Ctrl-C disturbs neither the cleanup nor the commands that it runs."""
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name")),
                 platform.machine())
    return {"kernel": platform.release(), "cores": os.cpu_count(), "processor": model, "python": platform.python_version(),
            "load_at_start": os.getloadavg()[0]}


def measured(options, network, name, order, per_host, trial):
    """A run of a contender."""
    contender = CONTENDERS[name](options)
    sizes = [f"{size}:{max(options.least, min(options.iterations, options.budget // size))}" for size in options.sizes]
    found = {"contender": name, "ranks": 4 * per_host, "order": order, "trial": trial}
    with tempfile.TemporaryDirectory(prefix="two-racks-") as folder:
        case = Case(network, order, per_host, sizes, options.unmeasured, pathlib.Path(folder))
        try:
            found["version"] = contender.version()
            before = network.uplinks()
            contender.run(case)
            found["results"] = case.results()
            found["uplink_bytes"] = {link: count - before[link] for link, count in network.uplinks().items()}
        except (OSError, ValueError) as error:
            found["error"] = str(error)
        finally:
            network.stop_all()
    if "error" in found:
        print(f"{name} {4 * per_host} {order}: {found['error']}", file=sys.stderr, flush=True)
    if carried := found.get("uplink_bytes"):
        print(f"{name:10} {found['ranks']:5} {order:9} uplinks: " + ", ".join(f"{link} {count / 1e6:.0f} MB" for link, count in carried.items()))
    for row in found.get("results", []):
        print(f"{name:10} {found['ranks']:5} {order:9} {row['bytes']:>9} B {row['p50'] * 1e3:10.2f} ms {row['p99'] * 1e3:10.2f} ms "
              f"{row['rate'] / 1e6:8.3f} MB/s {row['iterations']:4}", flush=True)
    return found


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda known: lambda text: [word for word in text.split(",") if word in known or sys.exit(f"{word}: one of {', '.join(known)}")]
    arguments.add_argument("--contenders", default=list(CONTENDERS), type=words(CONTENDERS))
    arguments.add_argument("--orders", default=list(ORDERS), type=words(ORDERS))
    arguments.add_argument("--ranks-per-host", default=[1, 2], type=lambda text: [int(word) for word in text.split(",")])
    arguments.add_argument("--host-mbit", default=100, type=int)
    arguments.add_argument("--spine-mbit", default=50, type=int)
    arguments.add_argument("--sizes", default="1KiB,64KiB,1MiB,16MiB", type=lambda text: [size(word) for word in text.split(",")])
    arguments.add_argument("--iterations", default=50, type=int, help="at most, of each size")
    arguments.add_argument("--least", default=3, type=int, help="iterations, however large the buffer")
    arguments.add_argument("--budget", default="16MiB", type=size, help="bytes of a buffer and iterations: fewer of large ones")
    arguments.add_argument("--unmeasured", default=2, type=int, help="iterations before those")
    arguments.add_argument("--trials", default=1, type=int)
    arguments.add_argument("--tidemill", default=REPOSITORY / "target/release/tidemill", type=pathlib.Path)
    arguments.add_argument("--member", default=REPOSITORY / "target/release/examples/member", type=pathlib.Path)
    arguments.add_argument("--tools", default=REPOSITORY / ".tidemill/two_racks", type=pathlib.Path)
    arguments.add_argument("--install", action="store_true")
    arguments.add_argument("--system", action="store_true")
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--hold", action="store_true")
    arguments.add_argument("--out", type=pathlib.Path)
    options = arguments.parse_args()
    options.random = random.Random(1)
    if isinstance(options.sizes, str):
        options.sizes = [size(word) for word in options.sizes.split(",")]
    options.tools = options.tools.absolute()
    if options.install:
        for name in filter(RIVALS.get, options.contenders):
            CONTENDERS[name](options).install()
            print(f"{name}: {CONTENDERS[name](options).version()}")
        return 0
    for number in SIGNALS:
        signal.signal(number, interrupted)
    facts = machine()
    try:
        network = Network(options.host_mbit, options.spine_mbit).__enter__()
    except OSError as error:
        print(f"two_racks.py: no namespaces here: {error}", file=sys.stderr)
        return NOT_PERMITTED
    try:
        if options.check:
            faults = check(network)
            print("\n".join(faults), file=sys.stderr)
            return 1 if faults else 0
        if options.hold:
            hosts = [{"namespace": network.space(node), "address": network.address(host), "rack": network.racks[host]}
                     for host, node in enumerate(network.hosts)]
            print(json.dumps({"hosts": hosts, "paths": PORTS, **network.rates}), flush=True)
            sys.stdin.read()
            return 0
        found = [measured(options, network, name, order, per_host, trial) for trial in range(options.trials)
                 for per_host in options.ranks_per_host for order in options.orders for name in options.contenders]
    finally:
        network.remove()
    if options.out:
        document = {"machine": facts, "network": network.rates, "runs": found}
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if any("error" in case for case in found) else 0


if __name__ == "__main__":
    sys.exit(main())
