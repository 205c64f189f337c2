"""A cluster of processes on this machine, in network namespaces or over the loopback, for the scripts that disturb and watch one.

Agents and the controller that end are started again as a service manager would; each may be told how long that takes.
"""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SCRIPTS = pathlib.Path(__file__).resolve().parent
NOT_PERMITTED = 77
# Until something that ended by itself is started again, seconds.
PAUSE = 0.5
CONTROLLER = "controller"


class NotPermitted(Exception):
    """There are no network namespaces here."""


class Stuck(Exception):
    """Something did not happen in time, or happened that must not."""


class Network:
    """`cluster_network.py` at work."""

    def __init__(self, machines):
        counts = ",".join(f"{site}:{count}" for site, count in machines.items())
        self.process = subprocess.Popen(
            [sys.executable, SCRIPTS / "cluster_network.py", "--machines", counts],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise NotPermitted() if code == NOT_PERMITTED else Stuck(f"the network ended with {code}")
        told = json.loads(line)
        self.machines, self.links = told["machines"], told["links"]
        self.lock = threading.Lock()

    def tell(self, order):
        with self.lock:
            self.process.stdin.write(order + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Stuck(f"{order}: {answer['error']}")
        return answer

    def down(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def has_ended(pid):
    """Whether a process is gone, or waits to be reaped."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rsplit(") ", 1)[1].startswith("Z")


def children(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return [child for child in found if not has_ended(child)]


class Service:
    """A controller or an agent, which is there as long as it is wanted."""

    def __init__(self, name, command, log, environment):
        self.name, self.command, self.log, self.environment = name, command, log, environment
        self.process = None
        self.is_wanted = True
        # When it is started again; none: it runs, or nobody has seen yet that it does not.
        self.back_at = None
        self.starts = 0
        # Ends that nobody here caused: when, and with which code.
        self.ends = []
        self.is_killed = False

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        self.starts += 1
        self.back_at, self.is_killed = None, False

    def look(self):
        """Starts it again if it is time to."""
        if not self.is_wanted or self.process is None or self.process.poll() is None:
            return
        if self.back_at is None:
            if not self.is_killed:
                self.ends.append((time.monotonic(), self.process.returncode))
            self.back_at = time.monotonic() + PAUSE
        if time.monotonic() >= self.back_at:
            self.start()

    def kill(self, back_after):
        """`kill -9`; false when it is not there."""
        if self.process.poll() is not None:
            return False
        self.is_killed, self.back_at = True, time.monotonic() + back_after
        self.process.kill()
        self.process.wait()
        return True

    def tail(self, lines=15):
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


class Lab:
    """`workers`: by site, how many."""

    def __init__(self, binary, workers, namespaces=True, keep=False):
        self.binary = str(pathlib.Path(binary).resolve())
        self.keep = keep
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tidemill-lab-"))
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
        self.workers = [f"{site}-{number}" for site, count in workers.items() for number in range(1, count + 1)]
        self.network = None
        if namespaces:
            machines = dict(workers)
            machines["hub"] = machines.get("hub", 0) + 1
            try:
                self.network = Network(machines)
            except (NotPermitted, Stuck):
                subprocess.run(["rm", "-rf", str(self.folder)], check=False)
                raise
            # The last machine of the hub is the controller's.
            self.controller_machine = f"hub-{machines['hub']}"
        self.services = {}
        # More arguments of the controller and of workers, by name.
        self.more = {}
        self.address = None
        self.is_over = threading.Event()
        self.manager = threading.Thread(target=self.manage, daemon=True)

    def environment(self):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TIDEMILL_")}
        return {**kept, "TMPDIR": str(self.temporary), "XDG_CACHE_HOME": str(self.folder / "cache")}

    def at(self, machine):
        """What starts a program on a machine."""
        if self.network is None or machine is None:
            return []
        return ["ip", "netns", "exec", self.network.machines[machine]["namespace"]]

    def manage(self):
        while not self.is_over.wait(0.02):
            for service in list(self.services.values()):
                service.look()

    def service(self, name, machine, arguments):
        log = self.folder / f"{name}.log"
        service = Service(name, [*self.at(machine), self.binary, *arguments], log, self.environment())
        service.start()
        self.services[name] = service
        return service

    def start(self):
        """A controller, and workers that have all joined."""
        if self.network is None:
            host, ports, machine = "127.0.0.1", [free_port(), free_port()], None
        else:
            machine = self.controller_machine
            host, ports = self.network.machines[machine]["address"], [7420, 7421]
        state = self.folder / CONTROLLER
        controller = self.service(CONTROLLER, machine, [
            "controller", "--state", str(state), "--listen", f"{host}:{ports[0]}", "--listen-hosts", f"{host}:{ports[1]}",
            "--name", host, *self.more.get(CONTROLLER, []),
        ])
        self.until("the controller tells its address", 30, lambda: "controller at " in controller.tail(50))
        lines = controller.tail(50).splitlines()
        self.address = next(line.split("controller at ")[1] for line in lines if "controller at " in line).strip()
        self.until("the first access token is there", 10, (state / "admin.token").exists)
        token = self.ask("token", "--uses", "99", json_output=False)
        join = self.folder / "join.token"
        join.write_text(token)
        for worker in self.workers:
            site = worker.split("-")[0]
            self.service(worker, worker, [
                "worker", "--join", self.address, "--state", str(self.folder / f"w-{worker}"), "--token-file", str(join),
                "--name", worker, "--tier", site, "--location", site, "--quiet", *self.more.get(worker, []),
            ])
        self.manager.start()
        self.until("all workers are there", 60, lambda: sum(
            1 for worker in (self.ask("workers") or {"workers": []})["workers"] if worker["is_alive"]
        ) == len(self.workers))

    def ask(self, *words, json_output=True, patience=20):
        """What the controller answers to a verb; none: it does not."""
        machine = self.controller_machine if self.network is not None else None
        more = ["--output", "json"] if json_output else []
        token = (self.folder / CONTROLLER / "admin.token").read_text().strip()
        environment = {**self.environment(), "TIDEMILL_CONTROLLER": self.address, "TIDEMILL_TOKEN": token}
        try:
            done = subprocess.run([*self.at(machine), self.binary, *words, *more], capture_output=True, text=True,
                                  env=environment, check=False, timeout=patience)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode not in (0, 1):
            if done.returncode == 69:
                return None
            raise Stuck(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout) if json_output else done.stdout

    def status(self, run):
        told = self.ask("status", run)
        return told["run"] if told else None

    def submit(self, workflow, plan, name, *more):
        told = self.ask("submit", str(workflow), "--plan", str(plan), "--as", name, *more, patience=60)
        if told is None:
            raise Stuck(f"run {name} cannot be submitted: the controller does not answer")
        return told["run"]

    def hosts(self):
        """Processes of runs, by machine."""
        agents = [(name, service.process) for name, service in self.services.items() if name != CONTROLLER]
        return {name: children(process.pid) for name, process in agents if process.poll() is None}

    def until(self, what, seconds, is_so, pause=0.05):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if is_so():
                return
            time.sleep(pause)
        raise Stuck(f"{what}: not within {seconds} s\n{self.told()}")

    def told(self):
        """For who looks for what went wrong."""
        parts = []
        with contextlib.suppress(Stuck, OSError):
            events = self.ask("events", json_output=False) or ""
            parts.append("events:\n" + "\n".join(events.splitlines()[-30:]))
        parts += [f"{name}:\n{service.tail()}" for name, service in self.services.items()]
        return "\n".join(parts)

    def namespaces(self):
        return [machine["namespace"] for machine in self.network.machines.values()] if self.network else []

    def end(self):
        """Ends everything in order; what was left behind, in words."""
        left = []
        self.is_over.set()
        if self.manager.is_alive():
            self.manager.join()
        hosts = [pid for pids in self.hosts().values() for pid in pids]
        order = sorted(self.services.values(), key=lambda service: service.name == CONTROLLER)
        for service in order:
            service.is_wanted = False
            if service.process.poll() is None:
                service.process.send_signal(signal.SIGTERM)
        for service in order:
            try:
                service.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                left.append(f"{service.name} does not end when told to")
                service.process.kill()
                service.process.wait()
        left += [f"process {pid} of a run outlives its agent" for pid in hosts if not self.gone(pid)]
        for namespace in self.namespaces():
            with contextlib.suppress(OSError):
                pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False).stdout
                left += [f"process {pid} in {namespace}" for pid in pids.split()]
                left += [f"socket {line} in {namespace}" for line in self.sockets(namespace)]
        left += [f"temporary file {path.name}" for path in self.temporary.iterdir()]
        with contextlib.suppress(OSError):
            left += [f"shared memory {name}" for name in os.listdir("/dev/shm") if "tidemill" in name]
        for pattern in ("*.next", "*.tmp", "*.part"):
            left += [f"half-written file {path.relative_to(self.folder)}" for path in self.folder.rglob(pattern)]
        return left

    def gone(self, pid, seconds=10):
        until = time.monotonic() + seconds
        while not has_ended(pid):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def sockets(self, namespace):
        """Sockets that listen or are connected: local end and state."""
        text = subprocess.run(["ip", "netns", "exec", namespace, "cat", "/proc/net/tcp", "/proc/net/tcp6"],
                              capture_output=True, text=True, check=False).stdout
        rows = [line.split() for line in text.splitlines() if ":" in line.split()[0]]
        return [f"{row[1]} {row[3]}" for row in rows if row[3] in ("01", "0A")]

    def remove(self):
        """Takes the network and the folder away."""
        for service in self.services.values():
            service.is_wanted = False
            if service.process.poll() is None:
                service.process.kill()
                service.process.wait()
        self.is_over.set()
        if self.network is not None:
            self.network.down()
        if self.keep:
            print(f"kept: {self.folder}", file=sys.stderr)
            return
        subprocess.run(["rm", "-rf", str(self.folder)], check=False)


def carry_out(campaign, workers, options, more=None):
    """Starts a cluster in network namespaces, has `campaign(lab, options)` find out about it, ends it and prints what was found; the exit code
    is 77 where there are no namespaces. `more`: arguments by worker."""
    try:
        lab = Lab(options.binary, workers, namespaces=True, keep=options.keep)
    except NotPermitted:
        print("there are no network namespaces here, or not for this user", file=sys.stderr)
        return 77
    if more:
        lab.more = more
    try:
        lab.start()
        told = campaign(lab, options)
        told["left"] = lab.end()
        if told["left"]:
            told["wrong"].append("something was left behind")
    except Stuck as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        lab.remove()
    text = json.dumps(told, indent=1)
    if options.json:
        options.json.write_text(text)
    print(text)
    return 1 if told["wrong"] else 0


def percentile(values, share):
    ordered = sorted(values)
    return ordered[round((len(ordered) - 1) * share)] if ordered else None
