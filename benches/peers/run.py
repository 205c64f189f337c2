#!/usr/bin/env python3
"""The same job in Tidemill and in peers: rows of a CSV file, counted by key in tumbling windows of a minute, to a CSV file.

    python3 -m venv target/peers && target/peers/bin/pip install bytewax pathway
    cargo build --release -p tidemill && cargo build --release -p tidemill-benches --example timely_count
    target/peers/bin/python benches/peers/run.py --rows 10000000 --out docs/benchmarks

Each peer is started as its guides say, with all processors of the machine to itself, in turn with the others. Two things are measured:

- a run that nothing happens to, without and with what makes it durable: rows a second from the start of the process to its
  end, the most memory it had (VmHWM, all its processes);
- a run that is durable and killed with SIGKILL when a third of the result is there, then started by the same command: how long
  until a result that was not there before, and what in the end is missing, doubled or different.

Peers that are not there are left out, and the table says so. Writes peers.json and peers.md.
"""

import argparse
import collections
import csv
import json
import os
import pathlib
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SIZE = 60_000


def write_rows(path, count, keys):
    """One row a millisecond; the result that is right, as counts by key and window."""
    draw = random.Random(5)
    names = [f"sensor{n:04d}" for n in range(keys)]
    expected = collections.Counter()
    with open(path, "w") as file:
        file.write("sensor,at\n")
        for first in range(0, count, SIZE):
            chosen = draw.choices(names, k=min(SIZE, count - first))
            file.writelines(f"{name},{first + n}\n" for n, name in enumerate(chosen))
            for name, n in collections.Counter(chosen).items():
                expected[name, first] = n
    return expected


class Peer:
    """How one of them is started, and where its result is."""

    name = ""
    durability = ""
    header = 0

    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.rows = arguments.rows_of.get(self.name.split(",")[0].lower(), arguments.rows)
        self.output = folder / f"{type(self).__name__}.csv"
        self.state = folder / f"{type(self).__name__}.state"

    def input(self):
        return self.folder / f"rows-{self.rows}.csv"

    def missing(self):
        """Why it cannot be measured here."""

    def reset(self):
        self.output.unlink(missing_ok=True)
        shutil.rmtree(self.state, ignore_errors=True)

    def command(self, durable):
        raise NotImplementedError

    def variables(self):
        return {"PEER_INPUT": str(self.input()), "PEER_OUTPUT": str(self.output)}

    def start(self, durable):
        log = open(self.folder / f"{type(self).__name__}.log", "a")
        return subprocess.Popen(
            self.command(durable), cwd=self.folder, env={**os.environ, **self.variables()}, stdout=log, stderr=log
        )

    def result(self):
        """Counts by key and window, each as often as it is there; text that cannot be read."""
        found, torn = collections.defaultdict(list), 0
        if not self.output.exists():
            return found, torn
        with open(self.output, newline="") as file:
            for row in list(csv.reader(file))[self.header:]:
                try:
                    self.take(found, row)
                except (ValueError, IndexError):
                    torn += 1
        return found, torn

    def take(self, found, row):
        found[row[0], int(row[1])].append(int(row[2]))

    def ends(self, durable):
        """Whether a run ends by itself; one that does not leaves the last window open."""
        return True

    def owed(self, durable, expected):
        """What it should have in the end."""
        last = max(start for _, start in expected)
        return {at: n for at, n in expected.items() if self.ends(durable) or at[1] != last}


class Tidemill(Peer):
    name, durability, header = "Tidemill", "`--state`, a checkpoint a second", 1

    def missing(self):
        if not self.arguments.binary.exists():
            return f"{self.arguments.binary} is not built"

    def command(self, durable):
        text = (HERE / "workflow.yaml").read_text().replace("path: out.csv", f"path: {self.output.name}")
        text = text.replace("path: rows.csv", f"path: {self.input().name}")
        (self.folder / "workflow.yaml").write_text(text)
        command = [str(self.arguments.binary), "run", "workflow.yaml", "--rate", "max", "--quiet"]
        return command + (["--state", str(self.state)] if durable else [])

    def take(self, found, row):
        start, _, sensor, n = row
        found[sensor, int(start)].append(int(n))


class Bytewax(Peer):
    name, durability = "Bytewax", "recovery partitions, a snapshot a second (`-r`, `-s 1`, `-b 0`)"

    def missing(self):
        return absent("bytewax")

    workers = 1

    def command(self, durable):
        command = [sys.executable, "-m", "bytewax.run", f"{HERE / 'bytewax_count.py'}:flow", "-w", str(self.workers)]
        return command + (["-r", str(self.state), "-s", "1", "-b", "0"] if durable else [])

    def reset(self):
        super().reset()
        self.state.mkdir()
        # Snapshots go to SQLite databases that are made before.
        subprocess.run([sys.executable, "-m", "bytewax.recovery", str(self.state), "1"], check=True)


class BytewaxTwo(Bytewax):
    name, workers = "Bytewax, two workers", 2


class Pathway(Peer):
    name, durability, header = "Pathway", "persistence in a folder, a snapshot a second, mode streaming, which leaves the last window open", 1

    def missing(self):
        return absent("pathway")

    def command(self, durable):
        return [sys.executable, str(HERE / "pathway_count.py")] + ([str(self.state)] if durable else [])

    def variables(self):
        return {**super().variables(), "PATHWAY_THREADS": str(os.cpu_count())}

    def take(self, found, row):
        sensor, start, n, _, diff = row
        if int(diff) < 0:
            found[sensor, int(start)].remove(int(n))
        else:
            found[sensor, int(start)].append(int(n))

    def ends(self, durable):
        return not durable


class Timely(Peer):
    name, durability = "timely dataflow, by hand", "none"

    def missing(self):
        if not self.arguments.timely.exists():
            return f"{self.arguments.timely} is not built"

    def command(self, durable):
        return [str(self.arguments.timely), str(self.input()), str(self.output)]


class TimelyTwo(Timely):
    name = "timely dataflow, by hand, two workers"

    def command(self, durable):
        return super().command(durable) + ["2"]


def absent(module):
    """Why a module cannot be used by this Python; none where it can."""
    call = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True)
    return None if call.returncode == 0 else f"`import {module}` fails here"


def version(module):
    call = [sys.executable, "-c", f"import importlib.metadata as m; print(m.version('{module}'))"]
    return subprocess.run(call, capture_output=True, text=True).stdout.strip()


def tree(process):
    """A process and those that it started."""
    found = [process]
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            for child in open(f"/proc/{process}/task/{task}/children").read().split():
                found += tree(int(child))
    except OSError:
        pass
    return found


def memory(process):
    """The most memory that it had so far, MiB."""
    kib = 0
    for one in tree(process):
        try:
            status = open(f"/proc/{one}/status").read()
            kib += int(status.split("VmHWM:")[1].split()[0])
        except (OSError, IndexError):
            pass
    return kib / 1024


def is_whole(peer, expected):
    """Cheap first: text of the right length, then every row."""
    if not peer.output.exists() or peer.output.stat().st_size < 12 * len(expected):
        return False
    return len(peer.result()[0]) >= len(expected)


def follow(peer, process, durable, expected, limit):
    """Waits for its end, or for a whole result where a run does not end; seconds, peak MiB, None after the limit."""
    begin, peak, looked = time.monotonic(), 0, 0
    while process.poll() is None:
        peak = max(peak, memory(process.pid))
        now = time.monotonic()
        if not peer.ends(durable) and now - looked > 0.5:
            if is_whole(peer, expected):
                took = time.monotonic() - begin
                process.terminate()
                process.wait()
                return took, peak
            looked = time.monotonic()
        if now - begin > limit:
            process.kill()
            process.wait()
            return None, peak
        time.sleep(0.01)
    return time.monotonic() - begin, peak


def undisturbed(peer, durable, expected, arguments):
    peer.reset()
    expected = peer.owed(durable, expected)
    process = peer.start(durable)
    took, peak = follow(peer, process, durable, expected, arguments.limit)
    wrong = judged(peer, expected)
    if took is None:
        return {"limit_s": arguments.limit, "peak_mib": peak, **wrong}
    if peer.ends(durable) and process.returncode != 0:
        return {"exit_code": process.returncode, **wrong}
    return {"rows_per_s": peer.rows / took, "seconds": took, "peak_mib": peak, **wrong}


def judged(peer, expected):
    found, torn = peer.result()
    return {
        "lost": sum(1 for key in expected if not found.get(key)),
        "doubled": sum(max(len(counts) - 1, 0) for counts in found.values()),
        "wrong": sum(1 for key, counts in found.items() if any(n != expected.get(key) for n in counts)),
        "torn": torn,
    }


def killed(peer, expected, arguments):
    """Kills it when a third of the result is there."""
    peer.reset()
    expected = peer.owed(True, expected)
    process = peer.start(True)
    begin, third = time.monotonic(), 12 * len(expected) // 3 * 2
    while not peer.output.exists() or peer.output.stat().st_size < third:
        if process.poll() is not None:
            return {"said": "it ended before a third of the result could be seen"}
        if time.monotonic() - begin > arguments.limit:
            process.kill()
            process.wait()
            return {"said": f"a third of the result was not there after {arguments.limit} s"}
        time.sleep(0.002)
    ran = time.monotonic() - begin
    for one in tree(process.pid):
        os.kill(one, signal.SIGKILL)
    death = time.monotonic()
    process.wait()
    before = set(peer.result()[0])
    length = peer.output.stat().st_size
    # The bookkeeping of this script is not the peer's time.
    own = time.monotonic() - death
    process = peer.start(True)
    first = None
    while process.poll() is None and time.monotonic() - death < arguments.limit:
        longer = peer.output.exists() and peer.output.stat().st_size > length
        if longer and first is None and set(peer.result()[0]) - before:
            first = time.monotonic() - death - own
        if not peer.ends(True) and first is not None:
            break
        time.sleep(0.002)
    took, _ = follow(peer, process, True, expected, arguments.limit)
    if first is None and set(peer.result()[0]) - before:
        first = time.monotonic() - death - own
    return {"ran_s": ran, "first_new_s": first, "ended": took is not None, **judged(peer, expected)}


def machine():
    model = next(line for line in open("/proc/cpuinfo") if line.startswith("model name")).split(":")[1].strip()
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "bytewax": version("bytewax"),
        "pathway": version("pathway"),
    }


def cell(of, key, form):
    values = [run[key] for run in of if run.get(key) is not None]
    return form(statistics.median(values)) if values else "none"


def errors(run):
    said = [f"{run[key]} {key}" for key in ("lost", "doubled", "wrong", "torn") if run.get(key)]
    return ", ".join(said) or "nothing"


def table(result):
    rows = [
        "| | rows | rows/s | peak memory | rows/s, durable | peak memory, durable | first new result after `kill -9` | lost, doubled, wrong after it |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for peer in result["peers"]:
        if "missing" in peer:
            rows.append(f"| {peer['name']} | not measured: {peer['missing']} | | | | | | |")
            continue
        rate, mib = (lambda v: f"{v:,.0f}".replace(",", " ")), (lambda v: f"{v:.0f} MiB")
        after = sorted({errors(run) if "lost" in run else run["said"] for run in peer["killed"]})
        cells = [
            peer["name"],
            f"{peer['rows'] / 1e6:g} M",
            cell(peer["plain"], "rows_per_s", rate),
            cell(peer["plain"], "peak_mib", mib),
            cell(peer["durable"], "rows_per_s", rate) if peer["durability"] != "none" else "has no such thing",
            cell(peer["durable"], "peak_mib", mib) if peer["durability"] != "none" else "",
            cell(peer["killed"], "first_new_s", lambda v: f"{v:.2f} s"),
            "; ".join(after),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def losses(result):
    """Where Tidemill is behind, one line a peer."""
    own = next((peer for peer in result["peers"] if peer["name"] == Tidemill.name and "plain" in peer), None)
    said = []
    for peer in result["peers"]:
        if own is None or peer is own or "plain" not in peer:
            continue
        for kind, key, what, more in (
            ("plain", "rows_per_s", "rows a second", True),
            ("plain", "peak_mib", "memory", False),
            ("durable", "rows_per_s", "rows a second, durable", True),
            ("durable", "peak_mib", "memory, durable", False),
            ("killed", "first_new_s", "the first new result after `kill -9`", False),
        ):
            ours, theirs = (
                [run[key] for run in of[kind] if run.get(key) is not None] for of in (own, peer)
            )
            if ours and theirs and (statistics.median(theirs) > statistics.median(ours)) == more:
                ratio = statistics.median(theirs) / statistics.median(ours)
                said.append(f"- {peer['name']}: {what}, {ratio:.2f} times ours")
    return "\n".join(said) or "- nowhere in this table"


def page(result, arguments):
    facts = result["machine"]
    durable = "\n".join(f"- {p['name']}: {p['durability']}" for p in result["peers"] if "durability" in p)
    wrong = [
        f"{p['name']}{', durable' if kind == 'durable' else ''}: {errors(run)}"
        for p in result["peers"]
        for kind in ("plain", "durable")
        for run in p.get(kind, [])
        if errors(run) != "nothing"
    ]
    fewer = "; slow peers get fewer rows, as the table says" if arguments.rows_of else ""
    command = f"--rows {arguments.rows} --rounds {arguments.rounds}" + "".join(f" --rows-of {n}={k}" for n, k in arguments.rows_of.items())
    quiet = "" if result["quiet"] else "**The machine was not quiet: other work ran on its cores. Take the order of size only.**\n\n"
    return f"""# Beside other engines

Written by `benches/peers/run.py {command}`. {quiet}The job: {arguments.rows:,} rows of a CSV file
(key and time, a row a millisecond, {arguments.keys} keys), counted by key in tumbling windows of a minute, to a CSV file: {result['results']:,} results{fewer}. Every peer gets
the whole machine, in turn, and is written as its guides say (`benches/peers`); the one by hand was written to be quick. Medians of {arguments.rounds}.

{table(result)}
Rows a second are from the start of the process to its end, with what Python takes to start. Without anything happening, wrong results: {'; '.join(wrong) or 'none'}.

Where we lose, by the medians:

{losses(result)}

What makes them durable:

{durable}

A run is killed with SIGKILL when a third of the result is there, and the same command is given at once. "none" for the first new result: there
was none within {arguments.limit} s, or the run did not get so far. What is done within a second has no checkpoint to go on from and begins again, as what
is not durable does.

| | |
|---|---|
| processor | {facts['processor']}, {facts['cores']} cores |
| system | {facts['system']} |
| load | {facts['load']} at the start |
| Python, Bytewax, Pathway | {facts['python']}, {facts['bytewax'] or 'none'}, {facts['pathway'] or 'none'} |
| Tidemill | `{os.path.relpath(arguments.binary, ROOT)}` |
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--rows-of", action="append", default=[], metavar="PEER=ROWS", help="another number of rows for a slow peer")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300, help="seconds that a run may take")
    parser.add_argument("--only", default="", help="part of a peer's name")
    parser.add_argument("--quiet-machine", action="store_true", help="nothing else runs on this machine")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/tidemill")
    parser.add_argument("--timely", type=pathlib.Path, default=ROOT / "target/release/examples/timely_count")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target")
    arguments = parser.parse_args()
    arguments.rows_of = {name.lower(): int(rows) for name, rows in (of.split("=") for of in arguments.rows_of)}
    arguments.binary, arguments.timely = arguments.binary.absolute(), arguments.timely.absolute()
    result = {"schema": 1, "rows": arguments.rows, "machine": machine(), "quiet": arguments.quiet_machine, "peers": []}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        numbers = {arguments.rows, *arguments.rows_of.values()}
        right = {rows: write_rows(folder / f"rows-{rows}.csv", rows, arguments.keys) for rows in numbers}
        result["results"] = len(right[arguments.rows])
        for kind in (Tidemill, Bytewax, BytewaxTwo, Pathway, Timely, TimelyTwo):
            if arguments.only.lower() not in kind.name.lower():
                continue
            peer = kind(arguments, folder)
            missing = peer.missing()
            if missing:
                result["peers"].append({"name": peer.name, "missing": missing})
                continue
            expected = right[peer.rows]
            found = {"name": peer.name, "rows": peer.rows, "durability": peer.durability, "plain": [], "durable": [], "killed": []}
            for _ in range(arguments.rounds):
                found["plain"].append(undisturbed(peer, False, expected, arguments))
                if peer.durability != "none":
                    found["durable"].append(undisturbed(peer, True, expected, arguments))
                found["killed"].append(killed(peer, expected, arguments))
            print(json.dumps(found), flush=True)
            result["peers"].append(found)
            peer.reset()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "peers.json").write_text(json.dumps(result, indent=2) + "\n")
    (arguments.out / "peers.md").write_text(page(result, arguments))
    print(table(result))


if __name__ == "__main__":
    main()
