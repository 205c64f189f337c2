"""Ranks of `tidemill train` as processes with a fixed budget of computation each, that can be killed and started again at any time.

They are started as tasks of a job are: the environment says which rank each one is. Each has a control group, so that ranks do not get
faster when others are lost: that is what machines of their own would do.
"""
import json
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time

import control_groups

# Until something of a training has happened, seconds.
PATIENCE = 240
# Microseconds in which a rank has its share of a core: far below the length of a step.
PERIOD = 20_000
# Weight of the ranks against other work on the machine, which then hardly changes their budgets; 1024 is usual.
SHARES = 200_000


class Stuck(Exception):
    """Something did not happen in time, or happened that must not."""


class Budget:
    """A control group for a rank, or none where the machine does not let a script make them."""

    def __init__(self, name, cores):
        self.group = None
        try:
            control_groups.PERIOD = PERIOD
            self.group = control_groups.Group(name)
            if not control_groups.IS_V2:
                control_groups.write(f"{self.group.cpu}/cpu.cfs_period_us", PERIOD)
                control_groups.write(f"{os.path.dirname(self.group.cpu)}/cpu.shares", SHARES)
            self.group.limit(cores=cores)
        except OSError:
            # The page then says that there were no budgets.
            self.group = None

    def enter(self):
        """For a process that is about to become a rank."""
        if self.group is not None:
            self.group.add(os.getpid())


class Machine:
    """The service of groups, and the budgets of ranks."""

    def __init__(self, binary, folder, ranks, cores):
        self.binary, self.folder = binary, pathlib.Path(folder)
        self.budgets = [Budget(f"rank-{rank}", cores) for rank in range(ranks)]
        self.trainings = []
        self.cores = cores if all(budget.group for budget in self.budgets) else None
        self.socket = self.folder / "net.sock"
        self.log = open(self.folder / "log.service", "w", encoding="utf-8")
        self.service = subprocess.Popen([binary, "net", "serve", "--socket", self.socket, "--host", "here"], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + PATIENCE
        while not self.socket.exists():
            if self.service.poll() is not None or time.monotonic() > deadline:
                raise Stuck(f"the service of groups does not serve: {(self.folder / 'log.service').read_text(encoding='utf-8').strip()}")
            time.sleep(0.02)

    def end(self):
        for training in self.trainings:
            training.stop()
        self.service.terminate()
        self.service.wait()
        self.log.close()
        control_groups.Group.remove_all()


class Training:
    """One start of a training. `events` has what its first rank says, with the time and the rank."""

    count = 0

    def __init__(self, machine, job, size, out, checkpoint=None):
        self.machine, self.job, self.size, self.out, self.checkpoint = machine, job, size, out, checkpoint
        Training.count += 1
        self.group, self.processes, self.events, self.news = f"training-{Training.count}", {}, [], queue.Queue()
        self.starts = 0
        machine.trainings.append(self)
        for rank in range(size):
            self.start(rank)

    def start(self, rank):
        """Starts a rank, or starts it again."""
        self.starts += 1
        environment = dict(os.environ, TIDEMILL_NET=str(self.machine.socket), TIDEMILL_GROUP=self.group,
                           TIDEMILL_RANK=str(rank), TIDEMILL_SIZE=str(self.size))
        environment.pop("TIDEMILL_CHECKPOINT", None)
        if self.checkpoint is not None:
            folder = self.checkpoint / str(rank)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "RESUME").unlink(missing_ok=True)
            environment["TIDEMILL_CHECKPOINT"] = str(folder)
        log = self.machine.folder / f"log.{self.group}-{rank}-{self.starts}"
        with open(log, "w", encoding="utf-8") as errors:
            process = subprocess.Popen([self.machine.binary, "train", self.job, "--out", self.out, "--output", "json"], env=environment,
                                       stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=self.machine.budgets[rank].enter)
        process.log = log
        self.processes[rank] = process
        threading.Thread(target=self.listen, args=(rank, process), daemon=True).start()

    def listen(self, rank, process):
        for line in process.stdout:
            try:
                self.news.put((time.monotonic(), rank, json.loads(line)))
            except ValueError:
                pass
        process.wait()
        self.news.put((time.monotonic(), rank, {"event": "ended", "code": process.returncode, "process": process.pid}))

    def next(self, until=None):
        """The next event; none at the time `until`."""
        wait = PATIENCE if until is None else max(0.0, until - time.monotonic())
        try:
            self.events.append(self.news.get(timeout=wait))
            return self.events[-1]
        except queue.Empty:
            if until is None:
                self.stop()
                raise Stuck(f"{self.job.name}: nothing happened for {PATIENCE} s") from None
            return None

    def until(self, name, is_so=lambda event: True):
        """The first event from now on that is as wanted, as (time, rank, event)."""
        while True:
            found = self.next()
            kind = found[2]["event"]
            if kind == name and is_so(found[2]):
                return found
            if kind == "ended" and found[2]["code"] not in (0, -signal.SIGKILL):
                words = self.processes[found[1]].log.read_text(encoding="utf-8").strip()
                raise Stuck(f"rank {found[1]} ended with {found[2]['code']}: {words}")
            if kind == "ended" and not self.alive():
                raise Stuck(f"{self.job.name}: all ranks ended before `{name}`")

    def alive(self):
        return [rank for rank, process in self.processes.items() if process.poll() is None]

    def kill(self, ranks):
        """Kills ranks at once. The time of that."""
        for rank in ranks:
            if self.processes[rank].poll() is not None:
                raise Stuck(f"rank {rank} was not there to be killed")
        at = time.monotonic()
        for rank in ranks:
            self.processes[rank].kill()
        for rank in ranks:
            self.processes[rank].wait()
        return at

    def done(self):
        """The report, once the training is done."""
        report = self.until("done")[2]
        self.stop()
        return report

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def of(self, name):
        return [(at, event) for at, _, event in self.events if event["event"] == name]
