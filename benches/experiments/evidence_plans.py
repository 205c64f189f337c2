"""Plans examples/vqa in many ways, runs each plan emulated, and writes predicted, simulated and measured figures.

Called by benches/experiments/evidence-plans.sh. Writes OUT.json and OUT.md. Exit code 1 if no plan could be measured.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "vqa"

# Machines that this one is not.
ELSEWHERE = ROOT / "benches" / "experiments" / "evidence_elsewhere.yaml"

# Name, infrastructure (here: all types are what this machine can be; diamond: the same, for the workflow of DIAMOND),
# service levels and options of the planner, options of the run. `rate=most` is 85 % of what the plan for the rate of the
# example could take, so that machines of any speed are busy.
CASES = [
    ("one small worker", "here", ["rate=20/s", "accuracy=60"], [], []),
    ("as the example asks", "here", ["rate=40/s", "accuracy=85"], [], []),
    ("more accurate", "here", ["rate=60/s", "accuracy=90"], [], []),
    ("several workers", "here", ["rate=150/s", "accuracy=90"], [], []),
    ("as much as it takes", "here", ["rate=most", "accuracy=85"], ["--max-utilization", "0.95"], []),
    ("bounded latency", "here", ["rate=40/s", "accuracy=85", "latency=p95:400ms"], [], []),
    ("a diamond", "diamond", ["rate=40/s", "accuracy=85"], [], []),
    ("one operator a worker", "here", ["rate=40/s", "accuracy=85"], ["--one-operator-per-worker"], []),
    ("all in the cloud", "here", ["rate=30/s", "accuracy=85"], ["--planner", "cloud-only"], []),
    ("other machines", "elsewhere", ["rate=20/s", "accuracy=80"], [], []),
    ("other machines, stretched", "elsewhere", ["rate=40/s", "accuracy=85"], [], ["--dilation", "3"]),
]

# Pairs go to two answerers, whose answers meet again: a stream that is split and joined.
DIAMOND = """  - id: second
    kind: ml
    input: pair
    variants: [../../models/vqa/answerer-small.yaml, ../../models/vqa/answerer-large.yaml]
    batching: {max_batch: 8, budget: 20ms}
  - id: both
    kind: join
    inputs: [answerer, second]
    options: {key: key, within: 2s, same_names: keep_first}
"""
# Models of the diamond: with all of them its profile would take long.
DIAMOND_MODELS = ["scene-features-medium", "scene-features-large", "speech-small", "speech-medium", "answerer-"]

# Types of ELSEWHERE by how many times slower they are than the type `large` of the profile.
FACTORS = {"gateway": 3.0, "server": 0.8}


def run(command, accept=(0,)):
    """stdout of a command; its stderr in the error."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode not in accept:
        raise RuntimeError(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def elsewhere(profile):
    """The profile with the types of ELSEWHERE: those of `large`, times a factor."""
    head, services = profile.split("services:\n", 1)
    machines = "".join(
        f"  - {{worker_type: {name}, how: predicted, factor: {factor:g}}}\n" for name, factor in FACTORS.items()
    )
    blocks, rest = re.split(r"(?m)^(?=  - operator: )", services), ""
    found = re.search(r"(?m)^\w", blocks[-1])
    if found:
        blocks[-1], rest = blocks[-1][: found.start()], blocks[-1][found.start():]
    units = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
    for name, factor in FACTORS.items():
        for block in [block for block in blocks if "worker_type: large\n" in block]:
            times = re.compile(r"(?<![\w.-])([0-9.]+)(ns|us|ms|s)\b")
            # Not the pause before a call: that is no time of the machine.
            lines = block.splitlines(keepends=True)
            stretch = lambda line: times.sub(lambda t: f"{round(float(t[1]) * units[t[2]] * factor)}ns", line)
            longer = "".join(line if "pause: " in line else stretch(line) for line in lines)
            longer = re.sub(r"how: \w+", "how: predicted", longer.replace("worker_type: large\n", f"worker_type: {name}\n"))
            blocks.append(longer)
    return f"{head}{machines}services:\n{''.join(blocks)}{rest}"


def workflow(folder, inputs, diamond, name="workflow.yaml"):
    """The example over a folder of inputs, with sources that start again, because few records say little about p99."""
    text = (EXAMPLE / "workflow.yaml").read_text()
    if diamond:
        text = text.replace("name: vqa\n", "name: diamond\n").replace("sinks:\n", f"{DIAMOND}sinks:\n")
        text = text.replace("input: answerer\n", "input: both\n")
        models = [line for line in text.splitlines() if line.startswith("      - ../../models/")]
        for line in models:
            if not any(f"/{model}" in line for model in DIAMOND_MODELS) or "int8" in line:
                text = text.replace(f"{line}\n", "")
    text = re.sub(r"(    kind: (?:image|wav)_directory\n)", r"\1    repeat: true\n", text)
    text = text.replace("../../models", str(ROOT / "models")).replace("data/", f"{inputs}/")
    text = text.replace("out/", f"{folder}/out/")
    text = text[text.index("version:"):]
    path = folder / name
    path.write_text(text)
    return path


def diamond_profile(folder, options):
    """A profile of the diamond, of the example's inputs. Its sources end: a profile reads them once."""
    flow = workflow(folder, EXAMPLE / "data", True, "profiled.yaml")
    flow.write_text(flow.read_text().replace("    repeat: true\n", ""))
    profile = folder / "diamond.yaml"
    run([options.binary, "profile", flow, "--infra", EXAMPLE / "infrastructure.yaml", "--out", profile, "--budget", "100s"])
    return profile.read_text()


def keep_awake():
    """A program for each processor that computes only where nothing else wants to: so none of them goes to sleep."""
    idle = ["chrt", "--idle", "0"] if shutil.which("chrt") else ["nice", "-n", "19"]
    spin = [sys.executable, "-c", "while True: pass"]
    return [subprocess.Popen([*idle, *spin]) for _ in range(os.cpu_count() or 1)]


def has_simulate(binary):
    return re.search(r"^  simulate ", run([binary, "--help"]), re.MULTILINE) is not None


def measure(case, options, folder):
    name, where, levels, planning, running = case
    binary = options.binary
    infrastructure = ELSEWHERE if where == "elsewhere" else EXAMPLE / "infrastructure.yaml"
    diamond = where == "diamond"
    flow = workflow(folder, options.inputs.resolve(), diamond)
    plan = folder / "plan.yaml"
    slo = [part for level in [*levels, *([] if any("latency" in l for l in levels) else ["latency=none"])]
           for part in ("--slo", level)]
    profile = folder / "profile.yaml"
    profile.write_text(diamond_profile(folder, options) if diamond else elsewhere(options.profile.read_text()))
    files = ["--infra", infrastructure, "--profiles", profile]
    if "rate=most" in levels:
        run([binary, "plan", flow, *files, *["rate=40/s" if s == "rate=most" else s for s in slo], *planning, "--out", plan])
        most = float(re.search(r"predicted:\s+rate:\s+value: \S+\s+to: ([0-9.]+)", plan.read_text()).group(1))
        levels = [f"rate={0.85 * most:.0f}/s" if level == "rate=most" else level for level in levels]
        slo = [levels[0] if part == "rate=most" else part for part in slo]
    told = json.loads(run([binary, "plan", flow, *files, *slo, *planning, "--out", plan, "--output", "json"]))
    rate = float(re.search(r"rate=([0-9.]+)", levels[0]).group(1))
    simulated = None
    if has_simulate(binary):
        simulated = json.loads(
            run([binary, "simulate", plan, flow, *files, *slo, "--output", "json"], accept=(0, 1))
        )
    report = json.loads(run([
        binary, "run", flow, "--plan", plan, "--emulate", *files, *running, "--rate", f"{rate:g}/s",
        "--records", int(rate * options.seconds), "--output", "json",
    ]))
    emulation = report["emulation"]
    batches = sorted({stage["max_batch"] for stage in plan_stages(plan)})
    return {
        "name": name,
        "levels": levels,
        "options": planning + running,
        "variants": told.get("variants"),
        "workers": told.get("workers"),
        "max_batch": max(batches),
        "dilation": emulation["dilation"],
        "speeds": sorted({json.dumps(worker["speed"]) for worker in emulation["workers"] if worker["speed"]}),
        "overruns": emulation["overruns"],
        "processor_time_ratio": emulation.get("processor_time_ratio"),
        "comparison": emulation["comparison"],
        "simulated": simulated,
        "links": emulation["links"],
        "stages": [worker["stages"] for worker in emulation["workers"]],
        "stage_times": [
            {key: stage[key] for key in ("stage", "batches", "queue", "compute", "transfer")}
            for stage in report["stages"]
        ],
    }


def plan_stages(plan):
    """Largest batches of a plan file, which is YAML of our own making."""
    text = plan.read_text()
    return [{"max_batch": int(found)} for found in re.findall(r"max_batch: (\d+)", text)] or [{"max_batch": 1}]


def figure(unit, value):
    if value is None:
        return "-"
    return {"1/s": f"{value:.1f}/s", "ms": f"{value:.0f} ms", "%": f"{value:.1f} %", "$/h": f"{value:.4f}",
            "B/s": f"{value / 1e3:.1f} kB/s"}.get(unit, f"{value:g}")


def predicted(row):
    """The prediction, with its range where that says something else."""
    value, between = figure(row["unit"], row["predicted"]), row.get("predicted_range")
    if row["predicted"] is None or not between or between[1] <= 1.5 * between[0]:
        return value
    return f"{value} ({' to '.join(figure(row['unit'], end) for end in between)})"


def simulated_value(measured, row):
    """The simulator's figure for a row, where it has one."""
    simulated = measured["simulated"] or {}
    sinks = simulated.get("sinks") or simulated.get("paths") or []
    first = sinks[0] if sinks else {}
    latency = first.get("latency", first)
    keys = {f"latency_{figure}": f"{figure}_ms" for figure in ("mean", "p50", "p90", "p99")}
    if row["quantity"] in keys:
        return latency.get(keys[row["quantity"]])
    if row["quantity"] == "rate":
        return first.get("rate_per_second")
    if row["quantity"] == "traffic":
        links = simulated.get("links") or []
        return next((link["bytes_per_second"] for link in links if f"{link['from']} -> {link['to']}" == row["of"]), None)
    if row["quantity"] == "cost":
        cost = simulated.get("cost")
        return cost.get("total") if isinstance(cost, dict) else cost
    if row["quantity"] == "utilization":
        for worker in simulated.get("workers") or []:
            if worker.get("worker", worker.get("id")) == row["of"]:
                part = worker.get("utilization")
                return part * 100 if part is not None and part <= 1.5 else part
    return None


def table(results, machine):
    lines = [
        "# Plans, measured",
        "",
        "Written by `benches/experiments/evidence-plans.sh`: plans of `examples/vqa` with the profile of this machine, each run emulated",
        "([Emulating a plan](../emulate.md)). Differences are from predicted to measured; what the emulator enforces is no",
        "evidence for the prediction.",
        "",
        machine,
        "",
    ]
    for result in results:
        lines += [f"## {result['name']}", ""]
        if "error" in result:
            lines += ["```", result["error"], "```", ""]
            continue
        speeds = ", ".join(result["speeds"]).replace('"', "")
        lines += [
            f"`{' '.join(result['levels'] + result['options'])}`: batches up to {result['max_batch']}, dilation"
            f" {result['dilation']:g}, speeds {speeds}, {result['overruns']['calls']} of {result['overruns']['of']} calls"
            f" overran; processor time of the calls {result['processor_time_ratio'] or 0:.2f} times that of the profile.",
            "",
            "| quantity | predicted | simulated | measured | difference | |",
            "|---|---:|---:|---:|---:|---|",
        ]
        for row in result["comparison"]:
            difference = row["difference_percent"]
            lines.append(
                f"| {row['quantity']} {row['of']} | {predicted(row)} |"
                f" {figure(row['unit'], simulated_value(result, row))} | {figure(row['unit'], row['measured'])} |"
                f" {'' if difference is None else f'{difference:+.1f} %'} | {row['verdict'].replace('_', ' ')} |"
            )
        lines.append("")
    return "\n".join(lines)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--binary", required=True)
    arguments.add_argument("--profile", required=True, type=pathlib.Path)
    arguments.add_argument("--machine", default="", help="a table with the facts of the machine")
    arguments.add_argument("--out", default=str(ROOT / "docs/benchmarks/plans-measured"))
    arguments.add_argument("--work", required=True, type=pathlib.Path)
    arguments.add_argument("--seconds", type=float, default=20.0, help="plan seconds of each run")
    arguments.add_argument(
        "--keep-awake", action="store_true", help="let no processor sleep while plans run, as while profiles are measured"
    )
    arguments.add_argument(
        "--inputs", default=EXAMPLE / "data", type=pathlib.Path,
        help="folder with images, questions and truth.csv, as models/training/generate.py writes them: other inputs than"
        " the profile's",
    )
    arguments.add_argument("--only", help="the case of that name")
    options = arguments.parse_args()
    # So that what keeps processors awake ends also when this is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    awake = keep_awake() if options.keep_awake else []
    try:
        results = measure_all(options)
    finally:
        for process in awake:
            process.kill()
            process.wait()
    state = "Processors were kept awake" if awake else "Processors slept between calls"
    others = options.inputs.resolve() != (EXAMPLE / "data").resolve()
    said = "Inputs that the profile has not seen." if others else "The inputs of the profile."
    document = {
        "version": 1, "seconds": options.seconds, "kept_awake": bool(awake), "other_inputs": others, "plans": results,
    }
    pathlib.Path(f"{options.out}.json").write_text(json.dumps(document, indent=1) + "\n")
    pathlib.Path(f"{options.out}.md").write_text(table(results, f"{state}. {said}\n\n{options.machine}"))
    return 0 if any("error" not in result for result in results) else 1


def measure_all(options):
    """All cases, or the wanted one; what fails is a result too."""
    results = []
    for case in CASES:
        if options.only and case[0] != options.only:
            continue
        folder = options.work / re.sub(r"[^a-z]+", "-", case[0])
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{case[0]}...", file=sys.stderr, flush=True)
        try:
            results.append(measure(case, options, folder))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            results.append({"name": case[0], "levels": case[2], "options": case[3] + case[4], "error": str(error)})
    return results


if __name__ == "__main__":
    sys.exit(main())
