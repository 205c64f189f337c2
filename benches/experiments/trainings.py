"""Measures trainings that lose ranks: ranks that continue beside restarts from checkpoints, and experts by load beside equal replicas.

    python3 benches/experiments/trainings.py --binary target/release/tidemill [--only lost,lost-small,impossible,spot,skew]
    make bench BENCH="trainings --only lost"

Ranks are processes of this machine with a fixed budget of computation each. Results are written to trainings.json and trainings.md in
--out; parts that are not measured again stay.
"""
import argparse
import datetime
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import trainings_page
import two_racks
from training_ranks import Machine, Stuck, Training

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
EXPERTS, RANKS, LEFT = 8, 10, 5
# Examples of a batch, and steps between checkpoints, where a step is mostly communication.
SMALL = {"batch": 1000, "every_steps": 50}
# Steps that no training of the replay reaches.
ENDLESS = 1_000_000
COLUMNS = [f"x{column}" for column in range(EXPERTS)]
# Minutes of the replayed trace.
TRACE_MINUTES = 80


def write_data(folder, ratio=1):
    """Eight groups of points, one a class; the first two have `ratio` times the points of each other."""
    chance = random.Random(1)
    rows = [",".join(COLUMNS + ["group"])]
    for group in range(EXPERTS):
        for _ in range(round(8000 * (ratio if group < 2 else 1) / (2 * ratio + 6))):
            point = (f"{chance.gauss(3.0 * (group == column), 0.5):.3f}" for column in range(EXPERTS))
            rows.append(",".join(point) + f",group-{group}")
    (folder / "points.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_job(folder, options, name, ranks, **more):
    model = {"kind": "mixture", "experts": EXPERTS, "hidden": options.hidden} | more.pop("model", {})
    train = {"dataset": "points.csv", "inputs": COLUMNS, "label": "group", "batch": options.batch, "model": model} | more
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({"version": 1, "job": {"name": name, "kind": "train", "gang": ranks, "train": train}}), encoding="utf-8")
    return file


def sums(training):
    """The sum of the losses of all steps up to each one that the first rank noted."""
    found, sum_, before = {}, 0.0, 0
    for _, event in training.of("step"):
        sum_ += event["loss"] * (event["step"] - before)
        before = event["step"]
        found[before] = sum_
    return found


def rate(steps, batch):
    """Examples a second between the first and the last of some (time, step)."""
    (begun, first), (ended, last) = steps[0], steps[-1]
    return (last - first) * batch / (ended - begun) if ended > begun else math.nan


def noted(training, begin, end):
    return [(at, event["step"]) for at, event in training.of("step") if begin <= at <= end]


class Restarts:
    """A training that ends with each loss, and starts again from its checkpoint with the ranks that are left."""

    def __init__(self, machine, options, steps):
        self.machine, self.options, self.steps = machine, options, steps
        self.kept, self.trainings, self.repeated, self.waits = machine.folder / "restarts", [], 0, []

    def start(self, size):
        job = write_job(self.machine.folder, self.options, f"restarts-{size}", size, steps=self.steps, survive=0,
                        checkpoint_every=self.options.every_steps, rebalance_every=0)
        self.trainings.append(Training(self.machine, job, size, self.machine.folder / "restarted", self.kept))
        return self.trainings[-1].until("regrouped")[2]["step"]

    def step(self):
        """The last step that the running training has noted."""
        return max((event["step"] for _, event in self.trainings[-1].of("step")), default=0)

    def lose(self, ranks, size):
        """Kills ranks, and starts again with so many: until the next step is done."""
        training = self.trainings[-1]
        at = training.kill(ranks)
        while training.alive():
            training.next(time.monotonic() + 0.05)
        while training.next(time.monotonic()) is not None:
            pass
        before = self.step()
        begun = self.start(size)
        self.repeated += max(0, before - begun)
        self.waits.append(self.trainings[-1].until("step")[0] - at)


def undisturbed(machine, options):
    job = write_job(machine.folder, options, "undisturbed", RANKS, steps=options.steps, survive=LEFT, checkpoint_every=0, rebalance_every=0)
    training = Training(machine, job, RANKS, machine.folder / "undisturbed")
    training.until("regrouped")
    return training, training.done()


def lost(options, machine):
    write_data(machine.folder)
    whole, report = undisturbed(machine, options)
    job = write_job(machine.folder, options, "lost", RANKS, steps=options.steps, survive=LEFT, checkpoint_every=0, rebalance_every=0)
    training = Training(machine, job, RANKS, machine.folder / "lost")
    begun = training.until("step")[0]
    # Rank 0 stays: its losses are the curve.
    order = random.Random(options.seed).sample(range(1, RANKS), RANKS - LEFT)
    losses, since, at = [], begun, begun
    for number, rank in enumerate(order):
        while training.next(begun + (number + 1) * options.every) is not None:
            pass
        at = training.kill([rank])
        before = rate(noted(training, since, at), options.batch)
        agreed = training.until("regrouped")
        if agreed[2]["from"] != "ranks" or rank in agreed[2]["ranks"]:
            raise Stuck(f"after the loss of rank {rank}: {agreed[2]}")
        stepped = training.until("step")
        losses.append({"rank": rank, "ranks": RANKS - number, "rate_before": before, "agreed_after": agreed[0] - at,
                       "noted_after": stepped[0] - at, "moved": agreed[2]["moved_experts"]})
        since = stepped[0]
    disturbed = training.done()
    seconds = training.of("done")[0][0] - begun
    last = rate(noted(training, since, math.inf), options.batch)
    if disturbed["lost_ranks"] != RANKS - LEFT:
        raise Stuck(f"{disturbed['lost_ranks']} ranks were lost, and {RANKS - LEFT} were killed")
    ours, theirs = sums(training), sums(whole)
    common = sorted(set(ours) & set(theirs))
    found = {"ranks": RANKS, "every": options.every, "steps": options.steps, "losses": losses, "rate_last": last, "seconds": seconds,
             "rate_undisturbed": report["examples_per_second"], "digest": disturbed["digest"], "digest_undisturbed": report["digest"],
             "starts": training.starts, "compared": len(common),
             "difference": max(abs(ours[step] - theirs[step]) / step for step in common)}
    restarts = Restarts(machine, options, options.steps)
    restarts.start(RANKS)
    begun = restarts.trainings[-1].until("step")[0]
    killed = 0
    for number in range(RANKS - LEFT):
        training = restarts.trainings[-1]
        while training.next(begun + (number + 1) * options.every) is not None and not training.of("done"):
            pass
        if training.of("done"):
            break
        killed += 1
        restarts.lose([RANKS - 1 - number], RANKS - 1 - number)
    training = restarts.trainings[-1]
    report = training.of("done")[0][1] if training.of("done") else training.done()
    training.stop()
    found["restarts"] = {"seconds": training.of("done")[0][0] - begun, "killed": killed, "repeated": restarts.repeated,
                         "waits": restarts.waits, "digest": report["digest"]}
    return found


def impossible(options, machine):
    """Kills four ranks, starts them again, and kills four of the others before those that came back take part."""
    write_data(machine.folder)
    job = write_job(machine.folder, options, "impossible", RANKS, steps=ENDLESS, survive=LEFT, checkpoint_every=options.every_steps, rebalance_every=ENDLESS)
    training = Training(machine, job, RANKS, machine.folder / "impossible", machine.folder / "kept")
    first = training.until("regrouped")[2]
    training.until("saved")
    gone = first["ranks"][-4:]
    training.kill(gone)
    second = training.until("regrouped")[2]
    for rank in gone:
        training.start(rank)
    kept = training.until("saved", lambda event: event["step"] >= second["step"])[2]["step"]
    training.until("step", lambda event: event["step"] >= kept + 3)
    # Four that hold all replicas of an expert.
    held = dict(zip(second["ranks"], second["experts"]))
    victims = expert = None
    for one in range(EXPERTS):
        holders = [rank for rank, experts in held.items() if one in experts]
        if len(holders) <= 4:
            expert, victims = one, holders + [rank for rank in held if rank not in holders][: 4 - len(holders)]
            break
    if victims is None:
        raise Stuck(f"each expert has more than four replicas: {held}")
    before = max(event["step"] for _, event in training.of("step"))
    at = training.kill(victims)
    agreed = training.until("regrouped")
    if agreed[2]["from"] != "checkpoint" or expert not in agreed[2]["lost_experts"]:
        raise Stuck(f"no rank has expert {expert}, and: {agreed[2]}")
    try:
        stepped = training.until("step", lambda event: event["step"] > agreed[2]["step"])[0] - at
    except Stuck:
        stepped = None
    training.stop()
    return {"killed": victims, "expert": expert, "lost_experts": agreed[2]["lost_experts"], "ranks": agreed[2]["ranks"],
            "step_before": before, "step": agreed[2]["step"], "agreed_after": agreed[0] - at, "noted_after": stepped}


def trace(options):
    """Losses and returns of machines in minutes, made from a seed: at most ten machines, at least five, up to four lost at once."""
    chance = random.Random(options.seed)
    there, away, at, found = set(range(RANKS)), set(), 0.0, []
    while (at := at + chance.expovariate(1 / 4.0)) < TRACE_MINUTES:
        if away and (len(there) == LEFT or chance.random() < 0.5):
            ranks = chance.sample(sorted(away), chance.randint(1, len(away)))
            there, away = there | set(ranks), away - set(ranks)
            found.append((at, "back", ranks))
        elif len(there) > LEFT:
            ranks = chance.sample(sorted(there), min(chance.choice((1, 1, 1, 2, 2, 4)), len(there) - LEFT))
            there, away = there - set(ranks), away | set(ranks)
            found.append((at, "lost", ranks))
    return found


def spot(options, machine):
    write_data(machine.folder)
    events = trace(options)
    scale = options.trace_seconds / TRACE_MINUTES
    job = write_job(machine.folder, options, "spot", RANKS, steps=ENDLESS, survive=LEFT, checkpoint_every=5 * options.every_steps, rebalance_every=20)
    training = Training(machine, job, RANKS, machine.folder / "spot", machine.folder / "spot-kept")
    begun = training.until("step")[0]
    for at, what, ranks in events:
        while training.next(begun + at * scale) is not None:
            pass
        if what == "back":
            for rank in ranks:
                training.start(rank)
        else:
            training.kill(ranks)
            training.until("regrouped", lambda event: not set(ranks) & set(event["ranks"]))
    while training.next(begun + options.trace_seconds) is not None:
        pass
    agreements = [event for _, event in training.of("regrouped")]
    ours = {"steps": max(event["step"] for _, event in training.of("step")),
            "from_checkpoint": sum(event["from"] != "ranks" for event in agreements[1:]), "starts": training.starts}
    training.stop()
    restarts = Restarts(machine, options, ENDLESS)
    restarts.start(RANKS)
    begun = restarts.trainings[-1].until("step")[0]
    there, members = set(range(RANKS)), list(range(RANKS))
    for at, what, ranks in events:
        while restarts.trainings[-1].next(begun + at * scale) is not None:
            pass
        there = there | set(ranks) if what == "back" else there - set(ranks)
        # Machines that came back take part from the next restart on.
        hit = [members.index(rank) for rank in ranks if rank in members] if what == "lost" else []
        if hit:
            members = sorted(there)
            restarts.lose(hit, len(members))
    while restarts.trainings[-1].next(begun + options.trace_seconds) is not None:
        pass
    theirs = {"steps": restarts.step(), "repeated": restarts.repeated, "waits": restarts.waits}
    restarts.trainings[-1].stop()
    return {"seconds": options.trace_seconds, "trace_minutes": TRACE_MINUTES, "seed": options.seed, "ours": ours, "restarts": theirs,
            "events": [[at, what, len(ranks)] for at, what, ranks in events], "ratio": ours["steps"] / theirs["steps"]}


def crc32c(data):
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    found = 0xFFFFFFFF
    for byte in data:
        found = table[(found ^ byte) & 0xFF] ^ (found >> 8)
    return found ^ 0xFFFFFFFF


def pin(file):
    """Changes a checkpoint: its gate gives each group of points to an expert of its own."""
    line, _, numbers = file.read_bytes().partition(b"\n")
    header = json.loads(line)
    gate = [30.0 * (group == expert) for expert in range(EXPERTS) for group in range(EXPERTS)] + [0.0] * EXPERTS
    numbers = struct.pack(f"<{len(gate)}d", *gate) + numbers[8 * len(gate):]
    header["crc32c"] = crc32c(numbers)
    file.write_bytes(json.dumps(header).encode() + b"\n" + numbers)


def skew(options, machine):
    """Time of a step where two of the experts have `ratio` times the load of each other one."""
    ranks, rows = 8, []
    for ratio in (1, 2, 4):
        write_data(machine.folder, ratio)
        row = {"ratio": ratio}
        # With this rate the gate learns next to nothing.
        of = {"survive": 0, "rate": 1e-9, "momentum": 0.0}
        job = write_job(machine.folder, options, "seed", 1, **of, steps=2, checkpoint_every=1, rebalance_every=0, model={"balance": 0})
        kept = machine.folder / f"kept-{ratio}"
        Training(machine, job, 1, machine.folder / "seed", kept).done()
        pin(kept / "0/training")
        for name, every in (("planned", 8), ("equal", 0)):
            folder = machine.folder / f"{name}-{ratio}"
            shutil.copytree(kept, folder)
            job = write_job(machine.folder, options, name, ranks, **of, steps=options.skew_steps, checkpoint_every=0, rebalance_every=every,
                            model={"slots": 2, "balance": 0})
            training = Training(machine, job, ranks, machine.folder / "out", folder)
            begun = training.until("regrouped")[2]
            if begun["from"] != "checkpoint":
                raise Stuck(f"the gate is not pinned: {begun}")
            report = training.done()
            # Replicas are planned by load from step 8 on.
            steps = [found for found in noted(training, 0, math.inf) if found[1] >= 9]
            placed = training.of("regrouped")[-1][1]["experts"]
            row[name] = {"step": options.batch / rate(steps, options.batch), "loads": report["experts"],
                         "replicas": [sum(expert in held for held in placed) for expert in range(EXPERTS)]}
        rows.append(row)
    return {"ranks": ranks, "rows": rows}


def with_small(part, **more):
    """A part with small batches."""
    def measured(options, machine):
        changed = argparse.Namespace(**vars(options) | SMALL | more)
        return part(changed, machine) | {"batch": changed.batch, "checkpoint_every": changed.every_steps}
    return measured


PARTS = {"lost": lost, "lost-small": with_small(lost, steps=500), "impossible": with_small(impossible, every_steps=10),
         "spot": with_small(spot), "skew": skew}


def commit():
    done = subprocess.run(["git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    only = lambda text: [word for word in text.split(",") if word in PARTS or sys.exit(f"{word}: one of {', '.join(PARTS)}")]
    parser.add_argument("--binary", default=REPOSITORY / "target/release/tidemill", type=pathlib.Path)
    parser.add_argument("--only", default=list(PARTS), type=only, help=",".join(PARTS))
    parser.add_argument("--cores", default=0.1, type=float, help="budget of a rank")
    parser.add_argument("--hidden", default=256, type=int, help="values of the hidden layer of an expert")
    parser.add_argument("--batch", default=4000, type=int)
    parser.add_argument("--every-steps", default=10, type=int, help="steps between checkpoints")
    parser.add_argument("--steps", default=100, type=int, help="of the part lost")
    parser.add_argument("--every", default=6.0, type=float, help="seconds between two losses of the part lost")
    parser.add_argument("--trace-seconds", default=80.0, type=float, help="length of the replay")
    parser.add_argument("--skew-steps", default=32, type=int, help="of each training of the part skew")
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--out", default=REPOSITORY / "docs/benchmarks", type=pathlib.Path)
    options = parser.parse_args()
    options.binary = options.binary.absolute()
    if not options.binary.exists():
        print(f"trainings.py: {options.binary} is missing: cargo build --release --locked -p tidemill, or name another with --binary", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, interrupted)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "trainings.json"
    document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"parts": {}}
    failed = False
    for name in options.only:
        begun, facts = time.monotonic(), two_racks.machine()
        with tempfile.TemporaryDirectory(prefix="tidemill-trainings-", ignore_cleanup_errors=True) as folder:
            machine = Machine(options.binary, folder, RANKS, options.cores)
            try:
                found = PARTS[name](options, machine)
            except Stuck as error:
                print(f"trainings.py: {name}: {error}", file=sys.stderr)
                failed = True
                continue
            except KeyboardInterrupt:
                print("trainings.py: interrupted", file=sys.stderr)
                return 130
            finally:
                machine.end()
        document["parts"][name] = {
            "date": datetime.date.today().isoformat(), "machine": facts, "load_at_end": os.getloadavg()[0], "commit": commit(),
            "build": options.binary.parent.name,
            "budget": machine.cores, "checkpoint_every": options.every_steps, "batch": options.batch, "hidden": options.hidden,
            "minutes": (time.monotonic() - begun) / 60,
        } | found
        print(f"{name}: {json.dumps(found)[:1500]}", file=sys.stderr, flush=True)
        # What is done stays done if a later part fails.
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (options.out / "trainings.md").write_text(trainings_page.page(document["parts"]), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
