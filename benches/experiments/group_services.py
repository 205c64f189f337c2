"""`tidemill net serve` in the hosts of a network of namespaces, and ranks of groups as programs (`runtime/collective/examples/member.rs`).

A network has `hosts` (names), `racks` (that of each host), `address(host)`, `inside(node, *words)` and `paths()`.
"""
import json
import pathlib
import subprocess
import time

PORT = 7470
# Seconds until services know each other, or a group has another strategy.
PATIENCE = 60


class Services:
    """The services of all hosts. That of the first one introduces ranks."""

    def __init__(self, network, tidemill, member, folder, more=()):
        self.network, self.tidemill, self.member, self.folder, self.more = network, tidemill, member, pathlib.Path(folder), more
        self.processes = []

    def __enter__(self):
        try:
            for host in range(len(self.network.hosts)):
                self.start(host)
            self.until("services did not find each other", lambda listing: len(listing["hosts"]) == len(self.network.hosts))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def socket(self, host):
        return self.folder / f"service-{host}" / "net.sock"

    def start(self, host):
        self.socket(host).parent.mkdir()
        words = [self.tidemill, "net", "serve", "--socket", self.socket(host), "--host", self.network.hosts[host], "--listen",
                 f"{self.network.address(host)}:{PORT}", "--rack", f"rack-{self.network.racks[host]}"]
        if host > 0:
            words += ["--groups-at", f"{self.network.address(0)}:{PORT}"]
        words += self.more
        for path in self.network.paths():
            words += ["--group-path", path]
        with open(self.folder / f"log.service-{host}", "w", encoding="utf-8") as log:
            self.processes.append(subprocess.Popen(self.network.inside(self.network.hosts[host], *words), stdout=log, stderr=log))

    def net(self, *words):
        """The answer of the first service to a command, as JSON."""
        words = [self.tidemill, "net", *words, "--socket", self.socket(0), "--output", "json"]
        done = subprocess.run(self.network.inside(self.network.hosts[0], *words), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip()}")
        return json.loads(done.stdout)

    def until(self, failure, is_so):
        """Waits until a listing is as wanted."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                listing = self.net("collective", "ls")["listing"]
                if is_so(listing):
                    return
            except OSError as error:
                # It has not begun to serve.
                failure = f"{failure.split(':')[0]}: {error}"
            if time.monotonic() > deadline:
                raise OSError(failure)
            time.sleep(0.1)

    def show(self, group):
        return self.net("collective", "show", group)["group"]

    def strategy(self, group, name):
        """Orders a strategy, and waits until all hosts have it."""
        epoch = self.net("collective", "strategy", group, name)["group"]["strategy"]["epoch"]
        self.until(f"group {group} does not change to {name}", lambda listing: any(
            found["name"] == group and found["state"] == "running" and found["figures"]["epoch"] >= epoch for found in listing["groups"]))


class Group:
    """Ranks on hosts. Each carries out what is written to it, and answers with a line of JSON."""

    def __init__(self, services, name, hosts, priority="normal"):
        self.services, self.name = services, name
        network = services.network
        self.logs = [services.folder / f"log.{name}-{rank}" for rank in range(len(hosts))]
        self.ranks = []
        for rank, host in enumerate(hosts):
            words = [services.member, services.socket(host), name, rank, len(hosts), priority]
            with open(self.logs[rank], "w", encoding="utf-8") as log:
                self.ranks.append(subprocess.Popen(network.inside(network.hosts[host], *words), stdin=subprocess.PIPE,
                                                   stdout=subprocess.PIPE, stderr=log, text=True))

    def __enter__(self):
        self.services.until(f"group {self.name} does not form", lambda listing: any(
            found["name"] == self.name and found["state"] == "running" for found in listing["groups"]))
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            rank.stdin.close()
            rank.stdout.close()

    def begin(self, *work):
        """Lets all ranks begin something."""
        for rank in self.ranks:
            rank.stdin.write(" ".join(map(str, work)) + "\n")
            rank.stdin.flush()

    def end(self):
        """What each rank answers."""
        lines = [rank.stdout.readline() for rank in self.ranks]
        if not all(lines):
            raise OSError(f"group {self.name}: a rank has ended: " + " ".join(log.read_text(encoding="utf-8").strip() for log in self.logs))
        return [json.loads(line) for line in lines]

    def do(self, *work):
        self.begin(*work)
        return self.end()

    def slowest(self, operation, size, iterations, unmeasured=1):
        """Seconds of the slowest rank of each operation, ascending."""
        answers = self.do(operation, unmeasured, f"{size}:{iterations}")
        return sorted(max(times) for times in zip(*(answer[0]["seconds"] for answer in answers)))

    def strategy(self, name):
        self.services.strategy(self.name, name)


class Tidemill:
    """A contender of two_racks.py: a strategy, its services and its ranks. A strategy of the name `random` is a ring in random order."""

    def __init__(self, options, strategy):
        self.tidemill, self.member, self.name, self.random = options.tidemill.absolute(), options.member.absolute(), strategy, options.random

    def version(self):
        for program in (self.tidemill, self.member):
            if not program.exists():
                raise OSError(f"{program} is missing: cargo build --release --locked -p tidemill --bin tidemill "
                              "-p tidemill-collective --example member")
        return subprocess.run([self.tidemill, "--version"], capture_output=True, text=True, check=True).stdout.strip()

    def run(self, case):
        strategy = self.name
        if strategy == "random":
            strategy = "ring:" + ",".join(map(str, self.random.sample(range(case.ranks), case.ranks)))
        with Services(case.network, self.tidemill, self.member, case.folder) as services:
            with Group(services, "contender", case.hosts) as group:
                group.strategy(strategy)
                for rank, answer in enumerate(group.do("all-reduce", case.unmeasured, *case.sizes)):
                    lines = "".join(json.dumps(line) + "\n" for line in answer)
                    pathlib.Path(f"{case.out}.{rank}").write_text(lines, encoding="utf-8")
