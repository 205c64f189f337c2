#!/usr/bin/env python3
"""Measure how senders that have two paths to a receiver get over the loss of one.

Two hosts, the network namespaces `tmp_a` and `tmp_b`, are joined by two paths, `fibre` and `lte`. A sends a small message every few
milliseconds to B. The path in use (by the byte counters of A's interfaces) is dropped in silence and comes back, round after round.
Packets are thrown away where they arrive, so that no sender gets an error, links keep their carrier, and ARP still passes: as if a
router further on had failed.

  benches/experiments/paths.py --down 2 --up 2 --rounds 10              the path in use is dropped ten times
  benches/experiments/paths.py --session-program 'target/release/examples/probe' --output paths.json
  benches/experiments/paths.py --drop one-way                           only packets from A to B are dropped
  benches/experiments/paths.py --loss 5 --seconds 60                    no cut; each path loses 5 % of its packets at random
  benches/experiments/paths.py --flap 0.3 --seconds 30                  fibre is there for 0.3 s, away for 0.3 s, and so on
  benches/experiments/paths.py --single                                 fibre alone, cut for 5 s: when is that noticed?
  benches/experiments/paths.py --down 20 --up 20 --minutes 10           a long run

Contenders: `tcp` over fibre; `mptcp` of the kernel, one subflow per path; `mptcp-mesh`, a second subflow over lte as well; and
`session`, an external program that is started as
  PROGRAM receive --listen session://fibre=10.77.1.2:7001,lte=10.77.2.2:7001 --out FILE          in B, until SIGTERM
  PROGRAM send --to session://... --every-ms 5 --bytes 1024 --seconds S --out FILE               in A, until all is delivered
Both write a line `NUMBER NANOSECONDS` (CLOCK_MONOTONIC) per message, at once: the sender the time at which the message was due, even if
it is sent later; the receiver the arrival. Numbers start at 0. A receiver may print `ready`; each end may print `noticed` when it sees
that a path is gone. Messages still missing `--patience` seconds after the last one was due are lost.

Wants root, ip, tc, nft, ss. Exit code: 0 measured, 1 a result is invalid, 77 no namespaces here.
"""
import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from paths_figures import evaluate, messages, show

A, B = "tmp_a", "tmp_b"
PATHS = {"fibre": "10.77.1", "lte": "10.77.2"}
PORT = 7001
STREAM = pathlib.Path(__file__).resolve().with_name("paths_stream.py")
CONTENDERS = ("tcp", "mptcp", "mptcp-mesh", "session")
NOT_PERMITTED = 77
# How often the bytes of the paths are read, and the share that a path must carry to be the one in use.
SAMPLE, SHARE = 0.1, 0.6


# The network.

def run(*words):
    """Output of a command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def filter_packets(rules):
    """Replace rules by namespace, in both at the same time."""
    started = [subprocess.Popen(["nsenter", f"--net=/run/netns/{space}", "nft", rule], stderr=subprocess.PIPE, text=True)
               for space, rule in rules.items()]
    for process in started:
        _, error = process.communicate()
        if process.returncode != 0:
            raise OSError(f"nft: {error.strip()}")


def cut(path, one_way=False):
    rule = f'add rule ip paths cut iifname "{path}" counter drop'
    filter_packets({B: rule} if one_way else {A: rule, B: rule})


def heal():
    """Let everything pass again; the number of packets that the last cut has dropped."""
    chains = [run("nsenter", f"--net=/run/netns/{space}", "nft", "list", "chain", "ip", "paths", "cut") for space in (A, B)]
    dropped = sum(int(count) for chain in chains for count in re.findall(r"counter packets (\d+)", chain))
    filter_packets(dict.fromkeys((A, B), "flush chain ip paths cut"))
    return dropped


def remove_network():
    """Remove the namespaces, with what runs and is filtered in them, of this run or of one that was killed."""
    for space in (A, B):
        with contextlib.suppress(OSError, ProcessLookupError):
            for pid in run("ip", "netns", "pids", space).split():
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)


def create_network(options, name):
    remove_network()
    for space in (A, B):
        run("ip", "netns", "add", space)
        run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "netns", "exec", space, "nft", "add table ip paths; "
            "add chain ip paths cut { type filter hook prerouting priority -300; }")
    for (path, net), rate in zip(PATHS.items(), (options.fibre_mbit, options.lte_mbit)):
        run("ip", "link", "add", path, "netns", A, "type", "veth", "peer", "name", path, "netns", B)
        for number, space in enumerate((A, B), 1):
            run("ip", "-n", space, "addr", "add", f"{net}.{number}/24", "dev", path)
            run("ip", "-n", space, "link", "set", path, "up")
            run("tc", "-n", space, "qdisc", "add", "dev", path, "root", "tbf", "rate", f"{rate}mbit", "burst", "256kb", "latency", "50ms")
    if not name.startswith("mptcp") or options.single:
        return
    # B offers its second address, and A connects to it over lte: one subflow per path.
    for space in (A, B):
        run("ip", "-n", space, "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "8")
    run("ip", "-n", B, "mptcp", "endpoint", "add", f"{PATHS['lte']}.2", "dev", "lte", "signal")
    if name == "mptcp-mesh":  # also over lte to B's first address: three subflows
        run("ip", "-n", A, "mptcp", "endpoint", "add", f"{PATHS['lte']}.1", "dev", "lte", "subflow", "fullmesh")


def mptcp_counters(pid):
    """Counters of the namespace of a process which are not zero."""
    with contextlib.suppress(OSError, StopIteration):
        lines = iter(pathlib.Path(f"/proc/{pid}/net/netstat").read_text().splitlines())
        names = next(line for line in lines if line.startswith("MPTcpExt:")).split()[1:]
        return {name: int(value) for name, value in zip(names, next(lines).split()[1:]) if int(value)}
    return {}


class Paths(threading.Thread):
    """Observer of the path in use, by the bytes that leave A."""

    def __init__(self, pid, least):
        super().__init__(daemon=True)
        self.pid, self.least = pid, least  # bytes per sample; fewer are no traffic
        self.changes = []  # (nanoseconds, path)
        self.over = threading.Event()

    @property
    def path(self):
        return self.changes[-1][1] if self.changes else None

    def sent(self):
        lines = (line.split() for line in pathlib.Path(f"/proc/{self.pid}/net/dev").read_text().splitlines())
        return {words[0][:-1]: int(words[9]) for words in lines if words[0][:-1] in PATHS}

    def run(self):
        with contextlib.suppress(OSError):  # the sender has ended
            while len(before := self.sent()) < len(PATHS):
                time.sleep(0.01)  # the process is not in its namespace yet
            while not self.over.wait(SAMPLE):
                now = self.sent()
                more = {path: now[path] - before[path] for path in PATHS}
                before, most = now, max(more, key=more.get)
                # Who sends on both paths alike uses the one that was seen first.
                is_most = more[most] >= SHARE * sum(more.values()) or not self.changes
                if more[most] >= self.least and is_most and most != self.path:
                    self.changes.append((time.monotonic_ns(), most))


# A run of one contender.

class Program:
    """Process in a namespace; it dies with this one. Its output goes to a log, and is looked through as it comes."""

    def __init__(self, space, command, log):
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", space, *command], start_new_session=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.log, self.noticed, self.ready = log, [], threading.Event()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        with self.log.open("w", buffering=1) as log:
            for line in self.process.stdout:
                if line.startswith("noticed"):
                    self.noticed.append(time.monotonic_ns())
                elif line.startswith("ready"):
                    self.ready.set()
                log.write(line)
        self.ready.set()

    def end(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=3)
                break
        self.reader.join(timeout=3)


def wait(program, until, is_so=lambda: False):
    """Wait for a time or a condition; false if the program has ended before."""
    while (left := until - time.monotonic()) > 0 and not is_so():
        if program.process.poll() is not None:
            return False
        time.sleep(min(left, 0.02))
    return True


def disturb(name, options, sender, paths):
    """Disturb the paths as the scenario wants; each cut as (begin, end, path, packets dropped), times in nanoseconds."""
    cuts, begin = [], time.monotonic()
    if options.loss:
        rule = f"add rule ip paths cut numgen random mod 100000 < {round(options.loss * 1000)} drop"
        filter_packets({A: rule, B: rule})
        wait(sender, begin + options.seconds)
    elif options.flap:
        for number in range(round(options.seconds / options.flap)):
            cut("fibre", options.drop == "one-way") if number % 2 == 0 else heal()
            if not wait(sender, begin + (number + 1) * options.flap):
                break
    else:
        for number in range(options.rounds):
            path = paths.path
            progress(f"{name}: round {number + 1} of {options.rounds}: {path} is dropped for {options.down:g} s")
            cut(path, options.drop == "one-way")
            at, begin = time.monotonic_ns(), time.monotonic()
            lives = wait(sender, begin + options.down)
            dropped = heal()
            cuts.append((at, time.monotonic_ns(), path, dropped))
            if not lives or not wait(sender, begin + options.down + options.up):
                break
    heal()
    return cuts


def measure(name, options, folder):
    """Result of one contender."""
    single = options.single
    progress(f"{name}: starts")
    create_network(options, name)
    if name == "session":
        program = shlex.split(options.session_program)
        url = "session://" + ",".join(f"{path}={net}.2:{PORT}" for path, net in PATHS.items() if path == "fibre" or not single)
    else:
        program, url = [sys.executable, str(STREAM)], f"{name.split('-')[0]}://{PATHS['fibre']}.2:{PORT}"
    work = options.seconds if options.loss or options.flap else options.rounds * (options.down + options.up + 0.06)
    seconds = 1 + options.calm + work
    sent_file, received_file = folder / f"{name}.sent", folder / f"{name}.received"
    programs, wrong = [], []
    try:
        receiver = Program(B, [*program, "receive", "--listen", url, "--out", str(received_file)], folder / f"{name}.receive.log")
        programs.append(receiver)
        receiver.ready.wait(1)
        sender = Program(A, [*program, "send", "--to", url, "--every-ms", f"{options.every_ms:g}", "--bytes", str(options.bytes),
                             "--seconds", f"{seconds:g}", "--out", str(sent_file)], folder / f"{name}.send.log")
        programs.append(sender)
        paths = Paths(sender.process.pid, 100 * SAMPLE * options.bytes / options.every_ms)
        paths.start()
        if not wait(sender, time.monotonic() + 15, lambda: paths.path) or not paths.path:
            raise OSError(f"{name}: no traffic: {(folder / f'{name}.send.log').read_text()[-500:]}")
        end = time.monotonic() + seconds
        wait(sender, time.monotonic() + options.calm)
        counters = mptcp_counters(receiver.process.pid) if name.startswith("mptcp") else None
        if counters is not None and not single and not counters.get("MPJoinAckRx"):
            wrong.append("the second subflow did not join")
        cuts_begin = time.monotonic_ns()
        cuts = disturb(name, options, sender, paths)
        if counters is not None:
            counters = mptcp_counters(receiver.process.pid)
            listed = run("ip", "netns", "exec", A, "ss", "-tnH", "state", "established", "dport", f"= :{PORT}")
            counters["subflows_at_end"] = len(listed.splitlines())
        if sender.process.poll() is not None:
            wrong.append(f"the sender ended early, with {sender.process.returncode}")
        wait(sender, end + options.patience)
        if sender.process.poll() is None:
            wrong.append(f"the sender has not delivered everything {options.patience:g} s after the end")
        elif sender.process.returncode != 0 and not wrong:
            wrong.append(f"the sender ended with {sender.process.returncode}")
        wait(receiver, time.monotonic() + 1)
        paths.over.set()
    finally:
        for one in reversed(programs):
            one.end()
    result = evaluate(messages(sent_file), messages(received_file), round(seconds * 1000 / options.every_ms), cuts_begin, cuts,
                      [at for at, _ in paths.changes], sorted(sender.noticed + receiver.noticed))
    return {**result, "mptcp": counters, "wrong": wrong}


# The command.

def progress(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    return {"kernel": platform.release(), "cores": os.cpu_count(), "processor": model, "python": platform.python_version(),
            "load_at_start": os.getloadavg()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    number = {"type": float, "metavar": "N"}
    parser.add_argument("--contenders", help=f"of {', '.join(CONTENDERS)}; default: all, session only if it has a program")
    parser.add_argument("--session-program", metavar="'PATH ARGS'")
    parser.add_argument("--down", **number, help="seconds that a path is dropped (2; with --single 5)")
    parser.add_argument("--up", **number, help="seconds until the next drop (2; with --single 10)")
    parser.add_argument("--rounds", type=int, metavar="N", help="number of drops (10; with --single 3)")
    parser.add_argument("--minutes", **number, help="as many rounds as fit in")
    parser.add_argument("--drop", choices=["both", "one-way"], default="both", help="directions of a cut; one-way: only from A to B")
    parser.add_argument("--loss", **number, help="percent of packets lost on each path, both ways; no cut")
    parser.add_argument("--flap", **number, help="seconds that fibre is away, and there, in turn")
    parser.add_argument("--seconds", **number, default=60, help="length of --loss and --flap (60)")
    parser.add_argument("--single", action="store_true", help="fibre alone")
    parser.add_argument("--calm", **number, default=5, help="seconds before the first disturbance (5)")
    parser.add_argument("--patience", **number, default=30, help="seconds to wait for what is late at the end (30)")
    parser.add_argument("--every-ms", **number, default=5, help="time between messages (5)")
    parser.add_argument("--bytes", type=int, metavar="N", default=1024, help="length of a message (1024)")
    parser.add_argument("--fibre-mbit", **number, default=200)
    parser.add_argument("--lte-mbit", **number, default=40)
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the files of messages and the logs")
    options = parser.parse_args()
    options.down = options.down or (5 if options.single else 2)
    options.up = options.up or (10 if options.single else 2)
    options.rounds = options.rounds or (3 if options.single else 10)
    if options.minutes:
        options.rounds = max(1, int(options.minutes * 60 / (options.down + options.up)))
    names = (options.contenders or "tcp,mptcp,mptcp-mesh" + (",session" if options.session_program else "")).split(",")
    if unknown := set(names) - set(CONTENDERS):
        parser.error(f"no such contender: {', '.join(unknown)}")
    if "session" in names and not options.session_program:
        parser.error("session needs --session-program")
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nft", "ss", "nsenter", "setpriv"))):
        print("this wants root, and ip, tc, nft, ss, nsenter, setpriv", file=sys.stderr)
        return NOT_PERMITTED
    lock = open(pathlib.Path(tempfile.gettempdir()) / "tidemill-paths.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        parser.error("another run is at work on this machine")
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, lambda *_: sys.exit(130))
    told = {"machine": machine(), "options": {key: value for key, value in vars(options).items() if key != "output"}, "contenders": {}}
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tidemill-paths-"))
    try:
        for name in names:
            told["contenders"][name] = measure(name, options, folder)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        remove_network()
        if told["contenders"]:
            print(f"kernel {told['machine']['kernel']}, {told['machine']['cores']} cores")
            show(told["contenders"])
            if options.output:
                options.output.write_text(json.dumps(told, indent=1) + "\n")
        if options.keep:
            progress(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    return 1 if any(result["wrong"] for result in told["contenders"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
