"""VQA and AICity planned with a device at a hub, and run over a shaped link: predicted beside measured.

    python3 benches/experiments/devices.py [--tidemill target/release/tidemill] [--only vqa|aicity] [--records 400] [--budget 2min]
        [--samples 100] [--slower 1] [--skip-faults] [--build development] [--work FOLDER]
        [--out FILE]

The machine at the edge and the one at the hub are network namespaces with a link between them; the engine has the first processor of
this machine, the device the second one. For each workflow, with the most accurate variant of each operator:

1. `tidemill profile` measures the edge on its processor with the back end `rten`, and the models on the device with `ort`.
2. `tidemill plan` plans for an edge of which only a part may be used, too little for the largest model, and a hub that costs more than
   its device. The plan must use the device.
3. `tidemill device serve` at the hub, and `tidemill run` at the edge at a rate that both keep. What the plan expects of each model on
   the device stands beside what the report of the run measured: means of all records, the first ones over a new connection too.
   Bytes, and network and computation together, must be within 10 %.
4. The same in the other form (`sends: rows` for tensors, and the other way around), and without a device: the same rows.
5. The same while a proxy process is killed every two seconds, and while the link is cut for 15 seconds: the same rows.

Prints tables, and writes JSON to FILE. Exit code 1 if a figure is off or rows differ. Needs root, `ip`, `tc`, /dev/net/tun, two
processors and PyYAML; exit code 77 without namespaces.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import yaml

from prediction import repeat
from requirements import LINK, REPOSITORY, Network, first_line

PORT = 7440
KIND = "card"
EDGE_PROCESSOR, HUB_PROCESSOR = "0", "1"
# Part of the time of the largest model that the plan may use of the edge.
LEFT_TO_THE_EDGE = 0.9
# Percent that a figure may be off.
TOLERANCE = 10.0
KILL_EVERY = 2.0
CUT_AFTER, CUT_FOR = 5.0, 15.0


@dataclasses.dataclass
class Case:
    """A workflow, and the link and the part of the edge that it gets."""

    name: str
    variants: dict
    rate: float
    # Megabits per second, and milliseconds there and back.
    bandwidth: float
    round_trip: float


CASES = [
    Case("vqa", {"scene_features": "scene-features-huge", "speech": "speech-large", "answerer": "answerer-large"},
         4.0, 50.0, 20.0),
    Case("aicity", {"detect": "vehicles-huge", "appearance": "appearance-huge"},
         10.0, 100.0, 10.0),
]


def inside(machine, processor, *words):
    return ["ip", "netns", "exec", machine["namespace"], "taskset", "-c", processor, *words]


def run(*words, log=None):
    """The output of a command that must succeed; its messages go to `log`."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, cwd=REPOSITORY)
    if log is not None:
        log.write_text(done.stderr, encoding="utf-8")
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stderr.strip()}\n{done.stdout.strip()}")
    return done.stdout


def write(path, value):
    """JSON is YAML."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return path


class Device:
    """`tidemill device serve` at the hub."""

    def __init__(self, tidemill, machine, folder):
        self.address = f"tcp://{machine['address']}:{PORT}"
        words = (tidemill, "device", "serve", "--backend", "ort", "--kind", KIND, "--listen", self.address, "--device",
                 f"devices-{os.getpid()}", "--cache", folder / "cache")
        self.process = subprocess.Popen(inside(machine, HUB_PROCESSOR, *map(str, words)), stderr=subprocess.PIPE, text=True,
                                        cwd=REPOSITORY)
        while "serves at" not in first_line(self.process.stderr, self.process, "the device"):
            pass
        self.said = []
        threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True).start()

    def proxies(self):
        """Processes of its sessions."""
        found = set()
        for children in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            try:
                found.update(map(int, children.read_text().split()))
            except OSError:
                pass  # the thread has ended
        return sorted(found)

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=20)


class Experiment:
    """One workflow."""

    def __init__(self, case, options, network, folder):
        self.case, self.options, self.network, self.folder = case, options, network, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.workflow = self.own_workflow()
        self.infra = self.infrastructure("infrastructure.yaml")
        self.loads = []

    def own_workflow(self):
        """The workflow of the example with one variant of each operator, batches of one record, and enough records."""
        case, example = self.case, REPOSITORY / "examples" / self.case.name
        data = example / "data"
        if case.name == "vqa":
            data = self.folder / "data"
            if not data.exists():
                data.mkdir()
                repeat(example / "data", data, -(-self.options.records // 200))
        text = (example / "workflow.yaml").read_text(encoding="utf-8")
        workflow = yaml.safe_load(re.sub(r"\$\{AICITY_CITY:-data\}", "data", text))
        for source in workflow["sources"]:
            source["rate"] = f"{case.rate:g}/s"
            source["options"]["path"] = str(data / pathlib.Path(source["options"]["path"]).relative_to("data"))
        for operator in workflow["operators"]:
            if operator["kind"] == "ml":
                wanted = f"{case.variants[operator['id']]}.yaml"
                chosen = next(variant for variant in operator["variants"] if variant.endswith("/" + wanted))
                operator["variants"] = [str((example / chosen).resolve())]
                operator["batching"] = {"max_batch": 1}
        for sink in workflow["sinks"]:
            if "ground_truth" in sink:
                truth = pathlib.Path(sink["ground_truth"]["path"])
                sink["ground_truth"]["path"] = str(data / truth.relative_to("data"))
        # A level of latency, even one that is easily kept, so that the plan says how long a record waits for the device.
        workflow["slo"] = {"rate": f"{case.rate:g}/s", "latency": {"percentile": "p95", "below": "20s"}}
        return write(self.folder / "workflow.yaml", workflow)

    def infrastructure(self, name, has_hub=True):
        """The edge and the hub with its device; or the edge alone, with a device to measure."""
        case = self.case
        devices = [{"kind": KIND, "memory": "4GiB", "price": "0.02 $/h", "address": f"{self.network.device['address']}:{PORT}"}]
        edge = {"type": "edge", "vcpu": 1, "memory": "2GiB", "price": "0.01 $/h"}
        hub = {"type": "hub", "vcpu": 1, "memory": "4GiB", "price": "0.08 $/h", "devices": devices}
        link = {"from": "edge", "to": "hub", "bandwidth": f"{case.bandwidth:g}Mbps", "delay": f"{case.round_trip / 2:g}ms",
                "direction": "both"}
        site = lambda name, worker: {"id": name, "workers": [worker]}
        tiers = [site("edge", edge), site("hub", hub)] if has_hub else [site("edge", {**edge, "devices": devices})]
        return write(self.folder / name, {"version": 1, "name": "edge-and-device", "tiers": tiers, "links": [link] * has_hub})

    def profile(self):
        """Times at the edge on its processor, with rten only, and those of the models on the device."""
        device = Device(self.options.tidemill, self.network.device, self.folder)
        try:
            run(*inside(self.network.client, EDGE_PROCESSOR), self.options.tidemill, "profile", self.workflow,
                "--infra", self.infrastructure("measured.yaml", has_hub=False), "--device", f"{KIND}={device.address}",
                "--budget", self.options.budget, "--samples", self.options.samples, "--out", self.folder / "measured",
                log=self.folder / "profile.txt")
        finally:
            device.close()
        profile = yaml.safe_load((self.folder / "measured/profile.yaml").read_text(encoding="utf-8"))
        is_kept = lambda row: row["worker_type"] == KIND or row.get("backend") in (None, "rten")
        profile["services"] = [row for row in profile["services"] if is_kept(row)]
        return write(self.folder / "profile.yaml", profile)

    def plan(self, profile):
        """The plan file, and the planner's account of it."""
        file = self.folder / "plan.yaml"
        services = yaml.safe_load(profile.read_text(encoding="utf-8"))["services"]
        wanted = self.case.variants.values()
        calls = [milliseconds(row["batches"][0]["mean"]) for row in services
                 if row["worker_type"] == "edge" and row.get("variant") in wanted]
        self.utilization = min(0.85, round(LEFT_TO_THE_EDGE * max(calls) / 1e3 * self.case.rate, 3))
        told = json.loads(run(self.options.tidemill, "plan", self.workflow, "--infra", self.infra, "--profiles", profile,
                              "--max-utilization", self.utilization, "--percentile", "p50", "--out", file, "-o", "json",
                              log=self.folder / "plan.txt"))
        plan = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not any(str(stage.get("device", "")).startswith("device:") for stage in plan["stages"]):
            raise OSError(f"{file} uses no device:\n{(self.folder / 'plan.txt').read_text()}")
        return plan, told

    def measure(self, name, plan, disturb=None):
        """Runs a plan at the edge, with a device at the hub; the report, and what its sinks wrote."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        outputs = self.folder / "out"
        for file in outputs.glob("*") if outputs.exists() else ():
            file.unlink()
        report = folder / "report.json"
        report.unlink(missing_ok=True)
        words = [self.options.tidemill, "run", self.workflow, "--plan", write(folder / "plan.yaml", plan), "--records",
                 self.options.records, "--report-json", report]
        device = Device(self.options.tidemill, self.network.device, self.folder)
        before, began = os.getloadavg()[0], time.monotonic()
        try:
            with open(folder / "run.txt", "w", encoding="utf-8") as log:
                process = subprocess.Popen(inside(self.network.client, EDGE_PROCESSOR, *map(str, words)), stdout=log, stderr=log,
                                           cwd=REPOSITORY)
                done = disturb(process, device) if disturb else {}
                if process.wait() != 0:
                    raise OSError(f"the run {name} failed: {folder / 'run.txt'}\n{(folder / 'run.txt').read_text()[-2000:]}")
        finally:
            device.close()
        seconds = time.monotonic() - began
        self.loads += [before, os.getloadavg()[0]]
        written = {file.name: file.read_bytes() for file in sorted(outputs.glob("*"))}
        for file, content in written.items():
            (folder / file).write_bytes(content)
        print(f"  {self.case.name}: run {name}, {seconds:.0f} s, load {before:.1f} to {self.loads[-1]:.1f} {done or ''}", flush=True)
        return {"report": json.loads(report.read_text(encoding="utf-8")), "written": written, "disturbed": done}

    def is_writing(self, process):
        """Waits for the first rows; whether there are any before the run ends."""
        while not any(file.stat().st_size for file in (self.folder / "out").glob("*")):
            try:
                process.wait(timeout=0.1)
                return False
            except subprocess.TimeoutExpired:
                pass
        return True

    def killing(self, process, device):
        """Kills a proxy every two seconds while the run lasts."""
        killed = 0
        while self.is_writing(process):
            try:
                process.wait(timeout=KILL_EVERY)
                break
            except subprocess.TimeoutExpired:
                for proxy in device.proxies()[:1]:
                    os.kill(proxy, signal.SIGKILL)
                    killed += 1
        return {"killed": killed}

    def cutting(self, process, _device):
        """Cuts the link while the run lasts."""
        if not self.is_writing(process):
            return {"cut": False}
        for pause, order in ((CUT_AFTER, "cut"), (CUT_FOR, "heal")):
            try:
                process.wait(timeout=pause)
                return {"cut": False}
            except subprocess.TimeoutExpired:
                self.network.order(f"{order} {LINK}")
        return {"cut": True}


def with_stages(plan, **changes):
    """The plan with other keys at the stages that have a device."""
    stages = [{**stage, **changes} if stage.get("device") else stage for stage in plan["stages"]]
    return {**plan, "stages": stages}


def in_other_form(plan):
    """The plan with rows for tensors, and tensors for rows."""
    other = lambda stage: {**stage, "sends": "tensors" if stage.get("sends") == "rows" else "rows"}
    return {**plan, "stages": [other(stage) if stage.get("device") else stage for stage in plan["stages"]]}


def off(predicted, measured):
    return (predicted / measured - 1) * 100


FIGURES = ("mean", "p50", "p95")


def stages_of(measured):
    """What was expected and measured of each model on a device."""
    rows = []
    for stage in measured["report"]["stages"]:
        there = stage.get("on_device")
        if not there:
            continue
        rows.append({
            "stage": stage["stage"], "device": stage["device"], "predicted": there.get("predicted"), "records": there["compute"]["count"],
            **{part: {key: there[part][f"{key}_ms"] for key in FIGURES} for part in ("client", "network", "queue", "compute")},
            "sent": there["sent_bytes_per_record"], "received": there["received_bytes_per_record"],
            "round_trips": there["round_trips_per_batch"], "sessions_lost": there["sessions_lost"],
        })
    return rows


def compared(row):
    """Lines of the table: name, predicted, measured, and whether it must be right."""
    expected = row["predicted"]
    network, compute = row["network"]["mean"], row["compute"]["mean"]
    there, back = expected["sent_bytes_per_record"], expected["received_bytes_per_record"]
    return [
        ("sent a record, bytes", there, row["sent"], False),
        ("received a record, bytes", back, row["received"], False),
        ("there and back, bytes", there + back, row["sent"] + row["received"], True),
        ("network, ms", expected["network_ms"], network, False),
        ("compute, ms", expected["compute_ms"], compute, False),
        ("network and compute, ms", expected["network_ms"] + expected["compute_ms"], network + compute, True),
    ]


def sinks_of(plan, measured):
    """The latencies that the plan expects at its slowest sink, beside those of the report."""
    expected = plan.get("predicted", {})
    at = expected.get("latency_at")
    for sink in measured["report"]["sinks"]:
        if sink["sink"] == at:
            latency = sink["latency"]
            return {"sink": at, "measured": {key: latency[f"{key}_ms"] for key in ("mean", "p50", "p95", "p99")},
                    "predicted": {key: milliseconds(expected[key]["value"]) for key in ("mean", "p50", "p90", "p99") if key in expected}}
    return None


def milliseconds(span):
    """A time as plans write it."""
    number, unit = re.fullmatch(r"([\d.]+)(ns|us|ms|s)", span).groups()
    return float(number) * {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def final(written):
    """Rows of each file that were not taken back, so that corrections may come in another order."""
    rows = {}
    for name, content in written.items():
        counted = {}
        for line in content.decode().splitlines():
            row = json.loads(line) if name.endswith(".jsonl") else line
            change = row.pop("_change", 1) if isinstance(row, dict) else 1
            key = json.dumps(row, sort_keys=True)
            counted[key] = counted.get(key, 0) + change
        rows[name] = sorted((key, count) for key, count in counted.items() if count)
    return rows


def likeness(one, other):
    """Whether two runs wrote the same."""
    if not one or not any(one.values()):
        return "nothing written"
    if one == other:
        return "byte by byte"
    return "final rows" if final(one) == final(other) else "DIFFERENT"


def experiment(case, options, network, folder):
    """Plans, runs and compares a workflow; what was found."""
    network.shape(case.round_trip / 1e3, case.bandwidth * 1e6)
    this = Experiment(case, options, network, folder)
    plan, told = this.plan(this.profile())
    runs = {"planned": this.measure("planned", plan), "other": this.measure("other", in_other_form(plan)),
            "cpu": this.measure("cpu", with_stages(plan, device="cpu", sends="tensors"))}
    if not options.skip_faults:
        runs["killed"] = this.measure("killed", plan, this.killing)
        runs["cut"] = this.measure("cut", plan, this.cutting)
    found = {"workflow": case.name, **dataclasses.asdict(case), "utilization": this.utilization, "cost": told["cost"],
             "loads": this.loads, "problems": []}
    wrong = found["problems"].append
    print(f"\n{case.name}: {case.rate:g}/s, {case.bandwidth:g} Mbit/s, {case.round_trip:g} ms there and back, "
          f"{told['cost']['total']:.4f} $/h, load {min(this.loads):.1f} to {max(this.loads):.1f}")
    found["sends"] = {stage["id"]: stage.get("sends", "tensors") for stage in plan["stages"] if stage.get("device")}
    print(f"  sends: {found['sends']}")
    found["stages"] = stages_of(runs["planned"])
    if not found["stages"]:
        wrong("no device computed anything")
    print(f"  {'':34} {'predicted':>12} {'measured':>12} {'error':>9}")
    for row in found["stages"]:
        row["compared"] = []
        for name, expected, measured, must in compared(row):
            error = off(expected, measured)
            row["compared"].append({"what": name, "predicted": expected, "measured": measured, "error": error})
            is_off = must and abs(error) > TOLERANCE
            if is_off:
                wrong(f"{row['stage']}: {name} is {error:+.1f} % off")
            print(f"  {row['stage'] + ': ' + name:34} {expected:12.1f} {measured:12.1f} {error:+7.1f} % {'OFF' if is_off else ''}")
        bound = row["predicted"]["queue_at_most_ms"]
        print(f"  {row['stage'] + ': queue at most, ms':34} {bound or 0:12.1f} {row['queue']['mean']:12.1f} (p95 {row['queue']['p95']:.1f})")
    found["latency"] = {name: sinks_of(plan, runs[name]) for name in ("planned", "other", "cpu")}
    for name, latency in found["latency"].items():
        if latency:
            said = lambda figures: ", ".join(f"{key} {value:.1f}" for key, value in figures.items())
            expected = f"predicted {said(latency['predicted'])}; " if name == "planned" else ""
            print(f"  latency of {latency['sink']}, {name}, ms: {expected}measured {said(latency['measured'])}")
    found["other"] = stages_of(runs["other"])
    for row in found["other"]:
        print(f"  {row['stage']} in the other form: {row['sent']:.0f} bytes there, {row['received']:.0f} back, "
              f"network {row['network']['mean']:.1f} ms, compute {row['compute']['mean']:.1f} ms")
    found["same"] = {}
    for name, base in (("planned", "cpu"), ("other", "cpu"), ("killed", "planned"), ("cut", "planned")):
        if name in runs:
            same = likeness(runs[name]["written"], runs[base]["written"])
            found["same"][name] = {"as": base, "how": same, "disturbed": runs[name]["disturbed"],
                                   "sessions_lost": [row["sessions_lost"] for row in stages_of(runs[name])]}
            if same not in ("byte by byte", "final rows"):
                wrong(f"the rows of {name} are not those of {base}: {same}")
            print(f"  rows of {name} and {base}: {same} {runs[name]['disturbed'] or ''}")
    if "killed" in runs and not (runs["killed"]["disturbed"]["killed"] and runs["cut"]["disturbed"]["cut"]):
        wrong("the runs were too short to be disturbed")
    for problem in found["problems"]:
        print(f"  {problem}")
    return found


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tidemill", default=REPOSITORY / "target/release/tidemill")
    arguments.add_argument("--only", choices=[case.name for case in CASES])
    arguments.add_argument("--records", default=400, type=int)
    arguments.add_argument("--budget", default="2min")
    arguments.add_argument("--samples", default=100, type=int)
    arguments.add_argument("--slower", default=1.0, type=float, help="divides the rates, for a slow machine")
    arguments.add_argument("--skip-faults", action="store_true")
    arguments.add_argument("--work", type=pathlib.Path)
    arguments.add_argument("--build", default="release", help="what kind of build the program is, for the JSON")
    arguments.add_argument("--out")
    options = arguments.parse_args()
    if os.cpu_count() < 2:
        sys.exit("two processors are needed")
    program = pathlib.Path(options.tidemill)
    built = time.strftime("%Y-%m-%d %H:%M", time.localtime(program.stat().st_mtime))
    about = {"version": run(program, "version").splitlines()[0], "built": built, "build": options.build}
    print(about)
    cases = [dataclasses.replace(case, rate=case.rate / options.slower) for case in CASES]
    network = Network()
    try:
        with tempfile.TemporaryDirectory() as folder:
            work = (options.work or pathlib.Path(folder)).resolve()
            found = [experiment(case, options, network, work / case.name) for case in cases if options.only in (None, case.name)]
    finally:
        network.close()
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps({"program": about, "experiments": found}, indent=1) + "\n", encoding="utf-8")
    return 1 if any(case["problems"] for case in found) else 0


if __name__ == "__main__":
    sys.exit(main())
