"""Runs plans of examples/published-vqa/emulated emulated, and writes predicted and measured rates side by side.

Called by benches/experiments/published-plan.sh. Writes OUT.json, OUT.md and OUT.svg after every run; what OUT.json has of the same
options is not run again. Exit code 1 if a plan could not be run.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "published-vqa"

# Name in the table, options of the planner.
PLANNERS = {
    "published": ("as published", ["--planner", "beam", "--one-operator-per-worker", "--return-traffic", "forbid"]),
    "ours": ("ours", []),
}
RATES = [10, 20, 40, 80]
ACCURACY = 56.0
# Seconds of the long simulation.
LONG = 600
# The least dilation is for a machine that does nothing else, and for calls that never meet.
DILATION_OVER_LEAST = 1.6


def run(command, show=False):
    """stdout of a command; its stderr in the error."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                          stderr=None if show else subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{(done.stderr or '')[-2000:]}")
    return done.stdout


def only(percentile, text):
    """A profile with this percentile alone, so that a worker is as fast in the run as its plan supposes."""
    found = re.search(rf"\b{percentile}: [0-9.]+ms", text)
    if not found:
        raise SystemExit(f"the published profile has no {percentile}")
    return re.sub(r"\{batch: 1, .*\}", lambda row: "{batch: 1, " + re.search(
        rf"\b{percentile}: [0-9.]+ms", row.group()).group() + "}", text)


def least_dilation(told):
    """The dilation that a run without records would have taken, in the words that it prints."""
    found = re.search(r"emulated ([0-9.]+) times slower", told)
    return float(found.group(1)) if found else 1.0


def simulated(binary, plan, flow, files, seconds):
    """The rate of a plan in the simulator, which knows only times and routes, for so many seconds."""
    told = run([binary, "simulate", plan, flow, *files, "--for", f"{seconds:g}s", "--output", "json"])
    return min(sink["rate_per_second"] for sink in json.loads(told)["sinks"])


def measure(planner, rate, options, profile):
    binary, folder = options.binary, options.work
    plan = folder / f"{planner}-{rate:g}.yaml"
    files = ["--infra", EXAMPLE / "infrastructure.yaml", "--profiles", profile]
    flow = workflow(folder)
    run([binary, "plan", flow, *files, "--slo", f"rate={rate:g}/s", "--slo", f"accuracy={ACCURACY}", "--percentile",
         options.percentile, "--max-utilization", "1.0", *PLANNERS[planner][1], "--out", plan])
    base = [binary, "run", flow, "--plan", plan, "--emulate", *files, "--rate", f"{rate:g}/s", "--output", "json"]
    records = max(int(rate * options.seconds), options.least_records)
    dilation = options.dilation
    if dilation is None:
        told = subprocess.run([str(part) for part in [*base, "--records", 1]], capture_output=True, text=True, cwd=ROOT,
                              check=False)
        dilation = round(least_dilation(told.stderr) * DILATION_OVER_LEAST, 1)
    report = json.loads(run([*base, "--records", records, "--dilation", dilation], show=True))
    emulation = report["emulation"]
    rows = {(row["quantity"], row["of"]): row for row in emulation["comparison"]}
    rate_row, cost, accuracy = rows["rate", ""], rows["cost", ""], rows.get(("accuracy", ""))
    stages = [stage for worker in emulation["workers"] for stage in worker["stages"]]
    return {
        "planner": planner,
        "rate": rate,
        "records": records,
        "arrived": sum(sink["records"] for sink in report["sinks"]),
        "dilation": emulation["dilation"],
        "variants": sorted({stage["stage"].split("@")[0]: stage_variant(plan, stage["stage"]) for stage in stages}.items()),
        "cost_predicted": cost["predicted"],
        "accuracy_of_profile": accuracy["predicted"] if accuracy else None,
        "rate_predicted": rate_row["predicted"],
        "rate_simulated": simulated(binary, plan, flow, files, records / rate),
        "rate_simulated_long": simulated(binary, plan, flow, files, LONG),
        "rate_measured": rate_row["measured"],
        "verdict": rate_row["verdict"],
        "enforced_by": rate_row["enforced_by"],
        "latency_p50_ms": rows["latency_p50", "answers"]["measured"],
        "latency_p99_ms": rows["latency_p99", "answers"]["measured"],
        "utilization": {of: [row["predicted"], row["measured"]] for (quantity, of), row in rows.items()
                        if quantity == "utilization"},
        "overruns": emulation["overruns"],
        "processor_time_ratio": emulation.get("processor_time_ratio"),
        "comparison": emulation["comparison"],
    }


def stage_variant(plan, stage):
    """Variant of a stage in a plan file, which is YAML of our own making."""
    found = re.search(rf"(?m)^- id: {re.escape(stage)}\n(?:  .*\n)*?  variant: (\S+)", plan.read_text())
    return found.group(1) if found else None


def workflow(folder):
    """The workflow with its results elsewhere."""
    text = (EXAMPLE / "emulated" / "workflow.yaml").read_text()
    text = text.replace("../../../models", str(ROOT / "models")).replace("../../vqa", str(ROOT / "examples" / "vqa"))
    text = text.replace("path: out/", f"path: {folder}/out/")
    path = folder / "workflow.yaml"
    path.write_text(text[text.index("version:"):])
    return path


def percent(part, whole):
    return f"{(part - whole) * 100 / whole:+.1f} %"


def table(document, machine):
    lines = [
        "# The published plan, predicted and measured",
        "",
        "Written by `" + document["command"] + "`, with the dilations of the table. [The published plan, run](../published-plan.md)",
        "explains it. Every speed of a worker is enforced, so no rate here is confirmed: all of them are",
        "`enforced`.",
        "",
        machine,
        "",
        "![Predicted and measured rates](published-plan.svg)",
        "",
        f"Plans for an accuracy of {ACCURACY:g} % by the profile, {document['percentile']} times, workers up to 100 % busy;"
        f" each run for {document['seconds']:g} plan seconds, at least {document['least_records']} records of each source.",
        "Simulated: the same plan in the simulator, for as long and for ten minutes: with workers 100 % busy a short run ends",
        "with a queue. Rate: of what arrived at the sink, from the first to the last. Slower: processor time of the calls over that measured",
        "before the run. Overran: calls that took longer here than their worker allows; above 1 % the run says nothing about",
        "latency, so none stands there, and a rate that was not reached may be this machine's and not the plan's.",
        "",
        "| plan | rate asked for | rate measured | difference | simulated as long | for 10 min | busiest worker, predicted and measured | latency p50, p99 | models |"
        " $/h predicted | dilation | slower | overran |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for result in document["runs"]:
        name = PLANNERS[result["planner"]][0]
        if "error" in result:
            lines.append(f"| {name} | {result['rate']:g}/s | {result['error'].splitlines()[-1][:120]} | | | | | | | | | | |")
            continue
        busiest = max(result["utilization"].values(), key=lambda each: each[0])
        models = ", ".join(variant for _, variant in result["variants"] if variant != "vqa-default")
        overruns = result["overruns"]
        kept_up = overruns["calls"] <= 0.01 * overruns["of"]
        latency = f"{result['latency_p50_ms']:.0f} ms, {result['latency_p99_ms']:.0f} ms" if kept_up else "-"
        lines.append(
            f"| {name} | {result['rate_predicted']:.1f}/s | {result['rate_measured']:.1f}/s |"
            f" {percent(result['rate_measured'], result['rate_predicted'])} | {result['rate_simulated']:.1f}/s |"
            f" {result['rate_simulated_long']:.1f}/s | {busiest[0]:.0f} %, {busiest[1]:.0f} % |"
            f" {latency} | {models} |"
            f" {result['cost_predicted']:.4f} | {result['dilation']:g} | {result['processor_time_ratio']:.2f} |"
            f" {overruns['calls']} of {overruns['of']} |"
        )
    return "\n".join([*lines, ""])


STYLE = (
    ".ground{fill:#f7f8fa}.grid{stroke:#d9dfe7}.axis{stroke:#5c6878}text{font-family:Inter,'Segoe UI',Roboto,"
    "'Helvetica Neue',Arial,'Liberation Sans',sans-serif;fill:#1b2431;font-size:12px}.title{font-size:14px;"
    "font-weight:650}.soft{fill:#5c6878}.line{fill:none;stroke:#8b97a8;stroke-width:2;stroke-dasharray:5 4}"
    ".p0{fill:#4657c9}.p1{fill:#0d8284}@media screen and (prefers-color-scheme:dark){.ground{fill:#12171e}"
    ".grid{stroke:#2c3642}.axis{stroke:#9aa7b7}text{fill:#e7ecf2}.soft{fill:#9aa7b7}.p0{fill:#8c9bff}.p1{fill:#3dbab8}}"
)


def drawing(document):
    """Measured over predicted rates; what is kept lies on the dashed line."""
    runs = [result for result in document["runs"] if "error" not in result]
    side, left, top = 320, 64, 44
    step = 20
    most = (int(max([result["rate"] for result in runs] + [step])) // step + 1) * step
    place = lambda rate: rate / most * side  # noqa: E731
    title = "Measured over predicted rates, emulated"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 420" width="560" height="420" role="img"'
        f' aria-label="{title}">',
        f"<title>{title}</title><style>{STYLE}</style>",
        '<rect class="ground" width="100%" height="100%"/>',
        f'<text class="title" x="{left}" y="24">{title}</text>',
    ]
    for rate in range(0, most + 1, step):
        x, y = left + place(rate), top + side - place(rate)
        parts.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{left + side}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{rate}/s</text>')
        parts.append(f'<text x="{x:.1f}" y="{top + side + 18}" text-anchor="middle">{rate}/s</text>')
    parts.append(f'<line class="axis" x1="{left}" y1="{top + side}" x2="{left + side}" y2="{top + side}"/>')
    parts.append(f'<line class="line" x1="{left}" y1="{top + side}" x2="{left + side}" y2="{top}"/>')
    parts.append(f'<text class="soft" x="{left + side / 2:g}" y="{top + side + 42}" text-anchor="middle">'
                 "rate that the plan was made for</text>")
    for number, (planner, (name, _)) in enumerate(PLANNERS.items()):
        for result in (result for result in runs if result["planner"] == planner):
            x, y = left + place(result["rate_predicted"]), top + side - place(result["rate_measured"])
            # A square around a circle, so that both are seen where they meet.
            shape = (f'<rect class="p{number}" x="{x - 6:.1f}" y="{y - 6:.1f}" width="12" height="12" opacity="0.6"/>'
                     if number == 0 else f'<circle class="p{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
            parts.append(shape)
        y = top + 8 + 20 * number
        parts.append(f'<rect class="p{number}" x="{left + side + 18}" y="{y - 8}" width="10" height="10"/>')
        parts.append(f'<text x="{left + side + 34}" y="{y + 1}">{name}</text>')
    parts.append(f'<text class="soft" x="{left + side + 18}" y="{top + 50}">dashed: as predicted</text>')
    return "\n".join([*parts, "</svg>", ""])


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--binary", required=True)
    arguments.add_argument("--machine", default="", help="a table with the facts of the machine")
    arguments.add_argument("--out", default=str(ROOT / "docs/benchmarks/published-plan"))
    arguments.add_argument("--work", required=True, type=pathlib.Path)
    arguments.add_argument("--seconds", type=float, default=10.0, help="plan seconds of each run")
    arguments.add_argument("--least-records", type=int, default=200, help="of each source, where that takes longer")
    arguments.add_argument("--rates", type=float, nargs="+", default=RATES)
    arguments.add_argument("--only", choices=PLANNERS)
    arguments.add_argument("--percentile", default="p75", help="of the published times, for plans and runs")
    arguments.add_argument("--dilation", type=float, help=f"instead of {DILATION_OVER_LEAST} times the least")
    options = arguments.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    profile = options.work / "profile.yaml"
    text = (EXAMPLE / "profiles.yaml").read_text()
    profile.write_text(only(options.percentile, text[text.index("version:"):]))
    command = "benches/experiments/published-plan.sh" + "".join(
        f" --{name} {value:g}" for name, value in (("seconds", options.seconds),) if value != 10.0)
    document = {"version": 1, "command": command, "percentile": options.percentile, "accuracy": ACCURACY,
                "seconds": options.seconds, "least_records": options.least_records, "runs": []}
    previous = pathlib.Path(f"{options.out}.json")
    if previous.is_file():
        known = json.loads(previous.read_text())
        if all(known.get(key) == document[key] for key in document if key != "runs"):
            document["runs"] = [result for result in known["runs"] if "error" not in result]
    for rate in options.rates:
        for planner in PLANNERS:
            if options.only not in (None, planner) or any(
                    (result["planner"], result["rate"]) == (planner, rate) for result in document["runs"]):
                continue
            print(f"{planner} at {rate:g}/s...", file=sys.stderr, flush=True)
            try:
                result = measure(planner, rate, options, profile)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                result = {"planner": planner, "rate": rate, "error": str(error)}
            document["runs"].append(result)
            document["runs"].sort(key=lambda each: (list(PLANNERS).index(each["planner"]), each["rate"]))
            previous.write_text(json.dumps(document, indent=1) + "\n")
            pathlib.Path(f"{options.out}.md").write_text(table(document, options.machine))
            pathlib.Path(f"{options.out}.svg").write_text(drawing(document))
    return 1 if any("error" in result for result in document["runs"]) else 0


if __name__ == "__main__":
    sys.exit(main())
