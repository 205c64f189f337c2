"""Plans examples/aicity with all planners, runs some plans, and writes predicted beside measured figures.

Called by benches/experiments/aicity-plans.sh. Writes OUT.json and OUT.md. Exit code 1 if nothing could be planned or run.
"""
import argparse
import aicity_figures
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "aicity"
WORKFLOW = EXAMPLE / "workflow.yaml"
PLANNERS = ["exact", "beam", "best-fit", "first-fit", "cloud-only", "edge-only"]
ACCURACIES = [70, 85]

# Title, file, frames per second, options. The published setups take 8 and 11 frames a second; their machines are so fast in
# machines.yaml that our models take a hundredth of the published time, so theirs times a hundred. Nothing flows back there.
SETUPS = [
    ("street, hub and cloud", "infrastructure.yaml", 40, []),
    ("medium", "medium.yaml", 800, ["--return-traffic", "forbid"]),
    ("large", "large.yaml", 1100, ["--return-traffic", "forbid"]),
]

# Frames per second in the medium setup, for the curves.
RATES = [100, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800, 2000]

# Name, service levels and options of the planner, how it is run, with what else. With `--processes` alone nothing is enforced: each
# worker is a process that is as fast as this machine lets it be, and links are those of this machine.
RUNS = [
    ("cheapest", ["accuracy=80"], [], ["--emulate"]),
    ("most accurate models", ["accuracy=80"], ["--planner", "best-fit"], ["--emulate", "--processes"]),
    ("in the cloud", ["accuracy=80"], ["--planner", "cloud-only"], ["--emulate"]),
    ("one operator a worker", ["accuracy=80"], ["--one-operator-per-worker"], ["--emulate"]),
    ("most accurate models", ["accuracy=80"], ["--planner", "best-fit"], ["--processes"]),
    ("one operator a worker", ["accuracy=80"], ["--one-operator-per-worker"], ["--processes"]),
    # At half the rate, for machines that do not keep up.
    ("most accurate models at 20/s", ["rate=20/s", "accuracy=80"], ["--planner", "best-fit"], ["--emulate"]),
    ("most accurate models at 20/s", ["rate=20/s", "accuracy=80"], ["--planner", "best-fit"], ["--processes"]),
]
# The cheapest plan for each of these rates, run at it: what comes is compared with what was planned.
EXPECTED_RATES = [20, 40, 80, 160]
# A way past the hub, for the plan in the cloud: the example has none.
PAST_THE_HUB = "  - {from: edge, to: cloud, price: 0.15 $/GiB, bandwidth: 50Mbps, delay: 22ms}\n"
SINK = "identified"
UNITS = {"1/s": "{:.1f}/s", "ms": "{:.0f} ms", "%": "{:.1f} %", "$/h": "{:.4f}", "B/s": "{:.0f} B/s"}


def run(command, accept=(0,)):
    """stdout of a command; its stderr in the error."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode not in accept:
        raise RuntimeError(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def planned(options, infrastructure, levels, planning, plan):
    """The answer of `plan`, and that of `simulate` where there is a plan."""
    profiles = [options.profile, *([EXAMPLE / "machines.yaml"] if infrastructure.name in ("medium.yaml", "large.yaml") else [])]
    files = ["--infra", infrastructure, "--profiles", *profiles]
    slo = [part for level in levels for part in ("--slo", level)]
    told = json.loads(run([options.binary, "plan", WORKFLOW, *files, *slo, *planning, "--out", plan, "--output", "json"], (0, 1)))
    if not told.get("variants"):
        return told, None
    rate = told["rate"]["wanted"]
    simulate = ["--for", f"{24_000 / rate:.0f}s", "--output", "json"]
    return told, json.loads(run([options.binary, "simulate", plan, WORKFLOW, *files, *slo, *simulate], (0, 1)))


def at_sink(simulated):
    """Simulated latency at the sink that is judged, in ms."""
    return next(sink["latency"] for sink in simulated["sinks"] if sink["sink"] == SINK)


def compare_planners(options):
    rows = []
    for title, file, rate, more in SETUPS:
        for accuracy in ACCURACIES:
            for planner in PLANNERS:
                levels = [f"rate={rate}/s", f"accuracy={accuracy}"]
                plan = options.work / "compared.yaml"
                told, simulated = planned(options, EXAMPLE / file, levels, [*more, "--planner", planner], plan)
                rows.append({
                    "setup": title, "rate": rate, "wanted": accuracy, "planner": planner, "status": told["status"],
                    **{key: told.get(key) for key in ("cost", "accuracy", "variants", "workers", "obstacle", "bound")},
                    "seconds": told["planning_seconds"],
                    "latency": simulated and at_sink(simulated),
                    "simulation_met": simulated and simulated["rate"]["met"],
                    "simulated_share": simulated and simulated["rate"]["achieved_share"],
                })
                print(title, accuracy, planner, (told.get("cost") or {}).get("total"), file=sys.stderr, flush=True)
    return rows


def compare_rates(options):
    """What the medium setup costs by rate, by the planners that find a plan there."""
    rows = []
    title, file, _, more = next(setup for setup in SETUPS if setup[0] == "medium")
    for planner in PLANNERS:
        for rate in RATES:
            files = ["--infra", EXAMPLE / file, "--profiles", options.profile, EXAMPLE / "machines.yaml"]
            levels = ["--slo", f"rate={rate}/s", "--slo", f"accuracy={aicity_figures.LEVEL}"]
            command = [options.binary, "plan", WORKFLOW, *files, *levels, *more, "--planner", planner]
            told = json.loads(run([*command, "--out", options.work / "by-rate.yaml", "--output", "json"], (0, 1)))
            cost = told.get("cost") if told.get("variants") else None
            rows.append({"setup": title, "planner": planner, "rate": rate, "cost": cost, "status": told["status"]})
            print(title, rate, planner, (cost or {}).get("total"), file=sys.stderr, flush=True)
            if not cost:
                break
    return rows


def predictions(told, simulated):
    """What is expected of a run, by quantity and what it is of."""
    latency = at_sink(simulated)
    links = {f"{link['from']} -> {link['to']}": link["bytes_per_second"] for link in told["traffic"] or []}
    return {
        ("rate", "", "1/s"): told["rate"]["wanted"],
        ("latency p50", "", "ms"): latency["p50_ms"],
        ("latency p99", "", "ms"): latency["p99_ms"],
        ("IDF1", "", "%"): told["accuracy"],
        ("cost", "", "$/h"): told["cost"]["total"],
        **{("traffic", name, "B/s"): value for name, value in links.items()},
    }


def places(plan):
    """Tier of each stage's worker, by worker, from the plan file."""
    text, tiers, worker = plan.read_text(), {}, None
    for line in text.splitlines():
        stripped = line.strip().removeprefix("- ")
        if stripped.startswith("id: "):
            worker = stripped[4:].strip()
        elif stripped.startswith("tier: ") and worker:
            tiers.setdefault(worker, stripped[6:].strip())
    return tiers


def measured_plain(report, plan, rate):
    """Figures of a run in which nothing was enforced: no prices, so no cost."""
    sink = next(sink for sink in report["sinks"] if sink["sink"] == SINK)
    records = sum(stage["records_out"] for stage in report["stages"] if stage["operator"] == "cameras")
    tiers = places(plan)
    of_stage = {stage["stage"]: stage["worker"] for stage in report["stages"]}
    tier = lambda stage: tiers.get(of_stage.get(stage), "edge")
    traffic = {}
    for edge in report["edges"]:
        way = (tier(edge["from"]), tier(edge["to"]))
        if edge["to"] in of_stage and way[0] != way[1]:
            traffic[" -> ".join(way)] = traffic.get(" -> ".join(way), 0) + edge["bytes"] * rate / max(records, 1)
    rates = {level["slo"]: level for level in report["slo"]}
    return {
        ("rate", "", "1/s"): float(rates["rate"]["measured"].split()[0]) if "rate" in rates else None,
        ("latency p50", "", "ms"): sink["latency"]["p50_ms"],
        ("latency p99", "", "ms"): sink["latency"]["p99_ms"],
        ("IDF1", "", "%"): sink.get("accuracy_percent"),
        **{("traffic", name, "B/s"): value for name, value in traffic.items()},
    }


def measured_emulated(report):
    names = {"latency_p50": "latency p50", "latency_p99": "latency p99", "accuracy": "IDF1"}
    values, verdicts = {}, {}
    for row in report["emulation"]["comparison"]:
        if row["quantity"].startswith("latency") and row["of"] != SINK:
            continue
        key = (names.get(row["quantity"], row["quantity"]), row["of"] if row["quantity"] == "traffic" else "", row["unit"])
        values[key], verdicts[key] = row["measured"], row["verdict"].replace("_", " ")
    return values, verdicts


def measure(options, number, case):
    name, levels, planning, how = case
    plan, infrastructure = options.work / f"plan-{number}.yaml", EXAMPLE / "infrastructure.yaml"
    if "cloud-only" in planning:
        text = infrastructure.read_text()
        infrastructure = options.work / "past-the-hub.yaml"
        infrastructure.write_text(text.rstrip("\n") + "\n" + PAST_THE_HUB)
    rate = next((int(level[5:-2]) for level in levels if level.startswith("rate=")), options.rate)
    levels = [f"rate={rate}/s", *(level for level in levels if not level.startswith("rate="))]
    told, simulated = planned(options, infrastructure, levels, planning, plan)
    if simulated is None:
        raise RuntimeError(told.get("obstacle") or f"no plan: {told['status']}")
    emulated = "--emulate" in how
    files = ["--infra", infrastructure, "--profiles", options.profile] if emulated else []
    output = options.work / f"report-{number}.json"
    with output.open("w") as out:
        command = [options.binary, "run", WORKFLOW, "--plan", plan, *how, *files, "--rate", f"{rate}/s", "--output", "json"]
        done = subprocess.run([str(part) for part in command], stdout=out, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    report = json.loads(output.read_text())
    expected = predictions(told, simulated)
    values, verdicts = measured_emulated(report) if emulated else (measured_plain(report, plan, rate), {})
    sink = next(sink for sink in report["sinks"] if sink["sink"] == SINK)
    return {
        "name": name, "levels": levels, "options": planning, "how": how, "variants": told["variants"],
        "workers": told["plan_workers"],
        "dilation": report["emulation"]["dilation"] if emulated else None,
        "overruns": report["emulation"]["overruns"] if emulated else None,
        "processor_time_ratio": report["emulation"].get("processor_time_ratio") if emulated else None,
        "records": sink["latency"]["count"], "interval": sink.get("accuracy_interval_percent"),
        "rows": [
            {"quantity": key[0], "of": key[1], "unit": key[2], "predicted": value, "measured": values.get(key), "verdict": verdicts.get(key)}
            for key, value in expected.items()
        ],
        "report": {key: report[key] for key in ("sinks", "edges")},
    }


def measure_rates(options):
    """Planned and measured rate of the cheapest plans for several rates, emulated."""
    rows = []
    for rate in EXPECTED_RATES:
        print(f"{rate} frames/s...", file=sys.stderr, flush=True)
        case = (f"cheapest at {rate}/s", [f"rate={rate}/s", "accuracy=80"], [], ["--emulate"])
        try:
            result = measure(options, f"rate-{rate}", case)
        except RuntimeError as error:
            rows.append({"rate": rate, "error": ([line for line in str(error).splitlines() if line.strip()] or ["it failed"])[-1]})
            continue
        value = {row["quantity"]: row for row in result["rows"]}
        rows.append({
            "rate": rate, "measured": value["rate"]["measured"], "accuracy": value["IDF1"]["measured"], "expected_accuracy": value["IDF1"]["predicted"],
            "interval": result["interval"], "cost": value["cost"]["measured"], "workers": result["workers"], "variants": result["variants"],
            **{key: result[key] for key in ("dilation", "overruns", "processor_time_ratio")},
        })
    return rows


def figure(unit, value):
    return "-" if value is None else UNITS[unit].format(value)


def kept(row):
    """Whether the rate was kept in the simulation."""
    share = row.get("simulated_share")
    words = {True: "kept", False: "missed", None: "too short"}[row["simulation_met"]]
    return words if row["simulation_met"] or share is None else f"{words}: {100 * share:.1f} %"


def beside_published():
    """What was published of the same workflow, with the cost that it was compared by."""
    known = json.loads(aicity_figures.PUBLISHED.read_text())
    lines = [
        "## Published figures", "",
        "Costs and planning times of tables 5.5 and 5.7 of the JellyBean evaluation, for one hour at 8 and 11 frames/s and an IDF1 of 70 %,",
        "with models and data that are not ours: their ratios can be compared with those above, not their numbers. `examples/aicity/published.json`",
        "has them all, with the models of table 5.3, relative prices of three kinds of machines and the latencies of table 5.6. Not published were accuracies of combinations of models, sizes of messages and other prices,",
        "so these plans cannot be computed again.", "",
        "| models | assignment | medium: machines + traffic | planning | large: machines + traffic | planning |", "|---|---|---:|---:|---:|---:|",
    ]
    duration = lambda seconds: "" if seconds is None else f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:g} s"
    for row in known["costs"]:
        parts = [
            f"{row[setup]['compute']:.1f} + {row[setup]['network']:.1f} = {row[setup]['compute'] + row[setup]['network']:.1f} | "
            f"{duration(row[setup]['planning_seconds'])}" for setup in ("medium", "large")
        ]
        lines.append(f"| {row['models']} | {row['assignment']} | {' | '.join(parts)} |")
    total = lambda models, assignment, setup: next(
        row[setup]["compute"] + row[setup]["network"] for row in known["costs"] if (row["models"], row["assignment"]) == (models, assignment)
    )
    saved = {setup: 100 * (1 - total("JB", "JB", setup) / total("most accurate", "PTc", setup)) for setup in ("medium", "large")}
    lines += [
        "", "JB: beam search for models and greedy assignment, as our `beam`; LB: all plans, as `exact`; BF and FF: `best-fit` and `first-fit`, there with",
        "JB's models; PTc and SPc: everything on a V100 in the cloud (PyTorch, Spark), as `cloud-only`. Against the most accurate models in the",
        f"cloud (PTc) JB saves {saved['medium']:.0f} % in the medium setup and {saved['large']:.0f} % in the large one.", "",
    ]
    return lines


def saving(rows):
    """What a choice of models saves against the most accurate ones in the cloud, in words."""
    words = []
    for setup in ("medium", "large"):
        cost = {row["planner"]: row["cost"]["total"] for row in rows if (row["setup"], row["wanted"]) == (setup, aicity_figures.LEVEL) and row["cost"]}
        if "cloud-only" in cost:
            each = [f"`{name}` {100 * (1 - cost[name] / cost['cloud-only']):.0f} %" for name in ("exact", "beam") if name in cost]
            words.append(f"{' and '.join(each)} in the {setup} setup")
    return [f"With our models, IDF1 of {aicity_figures.LEVEL} % or more, this is {', '.join(words)}.", ""] if words else []


def comparison(rows):
    lines = []
    for title, _, rate, _ in SETUPS:
        for accuracy in ACCURACIES:
            lines += [
                f"### {title}, {rate} frames/s, IDF1 of {accuracy} % or more", "",
                "| planner | $/h | workers | traffic | IDF1 | rate | p50 | p99 | detector, embedding | in |",
                "|---|---:|---:|---:|---:|---|---:|---:|---|---|",
            ]
            for row in rows:
                if (row["setup"], row["wanted"]) != (title, accuracy):
                    continue
                if not row["cost"]:
                    lines.append(f"| `{row['planner']}` | no plan | | | | | | | {row['obstacle'] or row['status']} | |")
                    continue
                cost, models = row["cost"], row["variants"]
                names = ", ".join(models[name].split("-")[-1] for name in ("detect", "appearance"))
                proven = " (proven)" if row["status"] == "optimal" else ""
                used = sorted({worker["location"] for worker in row["workers"]}, key=["edge", "hub", "cloud"].index)
                used = ", ".join(f"{tier} {sum(worker['location'] == tier for worker in row['workers'])}" for tier in used)
                latency = row["latency"]
                lines.append(
                    f"| `{row['planner']}` | {cost['total']:.4f}{proven} | {cost['compute']:.4f} | {cost['network']:.4f} |"
                    f" {row['accuracy']:.1f} % | {kept(row)} | {latency['p50_ms']:.0f} ms | {latency['p99_ms']:.0f} ms | {names} | {used} |"
                )
            lines.append("")
    return lines


def side_by_side(rows):
    """Which workers the operators have in the plans of `exact` and `beam`, where they differ."""
    chosen = {
        row["planner"]: row for row in rows
        if (row["setup"], row["wanted"]) == ("medium", aicity_figures.LEVEL) and row["planner"] in ("exact", "beam") and row["cost"]
    }
    if len(chosen) < 2:
        return []
    operators = {}
    for planner, row in chosen.items():
        for worker in row["workers"]:
            for part in worker["operators"]:
                share = f"{worker['id'].rsplit('-', 1)[0]} {100 * part['share']:.0f} %"
                operators.setdefault(part["operator"], {}).setdefault(planner, []).append(share)
    lines = [
        "### Two plans side by side", "",
        f"The medium setup at IDF1 of {aicity_figures.LEVEL} % or more, as figure 5.6 of the publication has it for its own plans: the workers of each operator, with the share of",
        "its records.", "",
        "| operator | `exact`, {:.2f} $/h | `beam`, {:.2f} $/h |".format(*(chosen[name]["cost"]["total"] for name in ("exact", "beam"))), "|---|---|---|",
    ]
    for name in ("detect", "vehicles", "appearance", "tracks", "across"):
        model = {planner: row["variants"].get(name) for planner, row in chosen.items()}
        cells = [", ".join([*filter(None, [model[planner]]), *sorted(operators.get(name, {}).get(planner, []))]) for planner in ("exact", "beam")]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return [*lines, ""]


def at_rates(rows, machine):
    """Planned and measured rates as a table, with the drawing."""
    lines = [
        "## Rates, planned and measured", "",
        "The cheapest plan for each rate and an IDF1 of 80 % or more, emulated, with all frames of the shipped clips; figure 5.5 of the publication shows the",
        "same of its plans.", "", machine, "", *(["![Planned and measured rates](aicity-expected.svg)", ""] if aicity_figures.judged(rows) else []),
        "| planned | measured | IDF1, predicted | IDF1, measured | $/h | models | workers | calls that overran |", "|---:|---:|---:|---:|---:|---|---|---:|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['rate']}/s | {row['error'].replace('|', '/')} | | | | | | |")
            continue
        overran = f"{row['overruns']['calls']} of {row['overruns']['of']}"
        between = " ({:.1f} to {:.1f})".format(*row["interval"]) if row["interval"] else ""
        lines.append(
            f"| {row['rate']}/s | {figure('1/s', row['measured'])} | {figure('%', row['expected_accuracy'])} | {figure('%', row['accuracy'])}{between} |"
            f" {figure('$/h', row['cost'])} |"
            f" {', '.join(row['variants'].values())} | {', '.join(row['workers'])} | {overran} |"
        )
    return [*lines, ""]


def agreement(results):
    """How latencies compare over all runs, in words: they are not to be overlooked in the tables."""
    lines = []
    for enforced in (True, False):
        ratios = []
        for result in results:
            if "error" in result or ("--emulate" in result["how"]) != enforced:
                continue
            row = next(row for row in result["rows"] if row["quantity"] == "latency p50")
            if row["predicted"] and row["measured"]:
                ratios.append(row["measured"] / row["predicted"])
        if ratios:
            how = "emulated" if enforced else "with nothing enforced"
            lines.append(f"- {len(ratios)} runs {how}: measured p50 is {min(ratios):.1f} to {max(ratios):.1f} times the predicted one.")
    return ["Latency:", "", *lines, "", "Emulated, a run in which more than one call of a hundred overran is no evidence for or against a latency. Where nothing is", "enforced nothing tells whether this machine kept up, so a difference may be the machine's or the prediction's; it has no verdict.", ""]


def runs(results):
    lines = agreement(results)
    for result in results:
        enforced = "emulated" if "--emulate" in result["how"] else "nothing enforced"
        lines += [f"### {result['name']}, {enforced}", ""]
        if "error" in result:
            lines += ["```text", result["error"], "```", ""]
            continue
        said = f"`{' '.join(result['levels'] + result['options'])}`, run with `{' '.join(result['how'])}`: "
        said += ", ".join(result["variants"].values()) + " on " + ", ".join(result["workers"])
        if result["dilation"]:
            overruns = result["overruns"]
            said += f"; dilation {result['dilation']:g}, {overruns['calls']} of {overruns['of']} calls overran"
            said += f"; processor time of the calls {result['processor_time_ratio'] or 0:.2f} times that of the profile"
        lines += [f"{said}. {result['records']} rows came.", "", "| quantity | predicted | measured | |", "|---|---:|---:|---|"]
        for row in result["rows"]:
            measured = figure(row["unit"], row["measured"])
            if row["quantity"] == "IDF1" and result["interval"]:
                measured += " ({:.1f} to {:.1f})".format(*result["interval"])
            lines.append(
                f"| {row['quantity']} {row['of']} | {figure(row['unit'], row['predicted'])} | {measured} | {row['verdict'] or ''} |"
            )
        lines.append("")
    return lines


def page(document):
    return "\n".join([
        "# Vehicles across cameras: plans compared and measured", "",
        "Written by `benches/experiments/aicity-plans.sh`: `examples/aicity` with its profile.", "",
        document["machine"], "",
        "## Planners", "",
        "Costs by the planner; p50 and p99 at `identified`, simulated for 24,000 frames. `street, hub and cloud` is the example's own",
        "infrastructure. `medium` and `large` are the setups of the JellyBean evaluation (its table 5.4), with 100 times its frames; its machines",
        "are taken for so fast that our middle detector needs a hundredth of its published time, and compare as published (`scripts/aicity_machines.py`),",
        "so these rows compare planners, not machines. What was not published is said in `examples/aicity/medium.yaml`.", "",
        "`rate`: whether the simulation kept the rate. Tracks are rare, some hundred in a simulation, and how many there are is drawn: so it is those",
        "that were drawn that have to come in time, unless they are fewer than chance explains (four standard deviations; `docs/simulate.md`).", "",
        "![Cost of the published setups](aicity-setups.svg)", "",
        *(["![Cost by rate, medium setup](aicity-rates.svg)", ""] if document.get("rates") else []),
        *comparison(document["plans"]),
        *side_by_side(document["plans"]),
        *beside_published(), *saving(document["plans"]),
        *(at_rates(document["expected"], document["expected_machine"]) if document.get("expected") else []),
        "## Runs", "",
        f"The shipped clips, {document['rate']} frames/s, or as it says, all of them. IDF1 is predicted from other traffic before the same cameras. Latency is that of `identified`, predicted",
        "by simulation: from the frame that shows that a track is over, so the tracker's `patience` is not in it (`docs/tracks.md`).",
        "A run of the clips has about a hundred tracks, too few for evidence on p99. Where nothing is enforced, bytes are those of records in",
        "memory, there is no cost, and workers are as fast as this machine, which all of them share. The plan in the cloud has a link past the",
        "hub that the example does not have: 0.15 $/GiB, 50 Mbps, 22 ms.", "",
        *runs(document["runs"]),
    ])


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--binary", required=True, type=lambda path: pathlib.Path(path).resolve())
    arguments.add_argument("--profile", default=EXAMPLE / "profile.yaml", type=lambda path: pathlib.Path(path).resolve())
    arguments.add_argument("--machine", default="", help="a table with the facts of the machine")
    arguments.add_argument("--out", default=str(ROOT / "docs/benchmarks/aicity-plans"))
    arguments.add_argument("--work", required=True, type=pathlib.Path)
    arguments.add_argument("--rate", type=int, default=40, help="frames a second of the runs")
    arguments.add_argument("--only", choices=["plans", "rates", "expected", "runs", "page"], help="the other parts stay as they are in OUT.json")
    options = arguments.parse_args()
    known = pathlib.Path(f"{options.out}.json")
    document = json.loads(known.read_text()) if known.exists() else {"version": 1, "plans": [], "runs": []}
    document["rate"] = options.rate
    # The rates may have been measured elsewhere than the rest.
    machine = "expected_machine" if options.only == "expected" else "machine"
    document[machine] = options.machine or document.get(machine, "")
    if options.only is None:
        document["expected_machine"] = document["machine"]
    if options.only in (None, "plans"):
        document["plans"] = compare_planners(options)
    if options.only in (None, "rates"):
        document["rates"] = compare_rates(options)
    if options.only in (None, "expected"):
        document["expected"] = measure_rates(options)
    if options.only in (None, "runs"):
        document["runs"] = []
        for number, case in enumerate(RUNS):
            print(f"{case[0]}...", file=sys.stderr, flush=True)
            try:
                document["runs"].append(measure(options, number, case))
            except RuntimeError as error:
                print(error, file=sys.stderr)
                name, levels, planning, how = case
                document["runs"].append({"name": name, "levels": levels, "options": planning, "how": how, "error": str(error)})
    known.write_text(json.dumps(document, indent=1) + "\n")
    pathlib.Path(f"{options.out}.md").write_text(page(document))
    aicity_figures.draw(options.out)
    ran = [*document["runs"], *document.get("expected", [])]
    return 0 if any("error" not in result for result in ran) and document["plans"] else 1


if __name__ == "__main__":
    sys.exit(main())
