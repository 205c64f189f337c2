#!/usr/bin/env python3
"""Watches the run of a deployment for a while and puts what the plan predicted beside what was measured.

    python3 scripts/demo_cluster_summary.py TIDEMILL DEPLOYMENT PLAN.json [--seconds 45] [--rate-of sources] [--results DIR]

PLAN.json is what `tidemill plan --output json` printed. Measured is the mean of the figures of one-second looks of the second half
of the time; latencies are the median of their percentiles. With `--rate-of sources` the rate is that of what sources emit, for workflows
whose results are fewer. With `--results` it then waits for the end of the run, fetches what sinks wrote, and the accuracy is that of the whole
run, for sinks that are judged by all that there was to find. Exit code 1 where a service level was missed in most of these looks.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

# How long the end of a run is waited for, in seconds.
PATIENCE = 300


def ask(program, *words):
    """What a verb answers as JSON; none: it does not answer now."""
    done = subprocess.run([program, *words, "--output", "json"], capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return None


def controller(deployment):
    """Options of verbs that ask the controller: the address as workers have it, at the port of this machine."""
    folder = pathlib.Path(deployment)
    document = json.loads((folder / "deployment.json").read_text(encoding="utf-8"))
    told = subprocess.run(["docker", "ps", "--filter", f"label=com.docker.compose.project={document['project']}-{document['controller']['location']}",
                           "--filter", "label=com.docker.compose.service=controller", "--format", "{{.Ports}}"],
                          capture_output=True, text=True, check=True).stdout
    port = told.split("127.0.0.1:")[1].split("-")[0]
    join = next(folder.glob("*/secrets/join-*")).read_text(encoding="utf-8").splitlines()[0]
    return ["--controller", f"tidemill://127.0.0.1:{port}/{join.rsplit('/', 1)[1]}", "--token-file", str(folder / "admin.token")], port


def looks(program, options, run, seconds):
    """Figures of a run, a second apart."""
    found = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        told = ask(program, "top", run, "--once", *options)
        if told is not None:
            found.append(told.get("figures") or told)
        time.sleep(1)
    return found


def fetch_at_its_end(program, options, run, folder):
    """Waits until a run is over, and writes what its sinks wrote into a folder. The figures at its end."""
    until = time.monotonic() + PATIENCE
    while True:
        told = ask(program, "status", run, *options)
        state = told["run"]["state"] if told else "not known"
        if state == "complete":
            break
        if state in ("failed", "cancelled") or time.monotonic() > until:
            sys.exit(f"the run has not come to its end: it is {state}")
        time.sleep(1)
    subprocess.run([program, "results", run, "--out", folder, *options], check=True, stdout=subprocess.DEVNULL)
    told = ask(program, "top", run, "--once", *options)
    if told is None:
        sys.exit("the run has come to its end, and the controller does not tell its figures")
    return told.get("figures") or told


def text(value, unit, digits=1):
    return "-" if value is None else f"{value:.{digits}f} {unit}"


def mean(values):
    values = [value for value in values if value is not None]
    return statistics.fmean(values) if values else None


def median(values):
    values = [value for value in values if value]
    return statistics.median(values) if values else None


def rate_of_sources(figures):
    """Records a second of a source; of several the mean."""
    names = {source["source"] for source in figures["sources"]}
    return sum(source["per_second"] for source in figures["sources"]) / max(len(names), 1)


def rows(plan, found, of_sources, last):
    """Lines of the table: what, predicted, measured. `last` has the accuracy."""
    expectation = plan.get("expectation") or {}
    sinks = [figures["sinks"][0] for figures in found if figures["sinks"]]
    accuracy = last["sinks"][0]["accuracy_percent"] if last["sinks"] else None
    rates = [rate_of_sources(figures) for figures in found] if of_sources else [sink["per_second"] for sink in sinks]
    lines = [
        ("rate", text(plan["rate"]["wanted"], "/s"), text(mean(rates), "/s")),
        ("latency p50", text(expectation.get("p50_ms"), "ms"), text(median(sink["latency"]["p50_ms"] for sink in sinks), "ms")),
        ("latency p99", text(expectation.get("p99_ms"), "ms"), text(median(sink["latency"]["p99_ms"] for sink in sinks), "ms")),
        ("accuracy", text(plan.get("accuracy"), "%"), text(accuracy, "%")),
        ("cost", text(plan["cost"]["total"], "$/h", 4), text(mean(figures["cost"]["now"] for figures in found), "$/h", 4)),
    ]
    for role in found[-1]["workers"]:
        if role["predicted_percent"] is None:
            continue
        busy = mean(other["busy_percent"] for figures in found for other in figures["workers"] if other["worker"] == role["worker"])
        lines.append((f"{role['worker']} busy", text(role["predicted_percent"], "%"), text(busy, "%")))
    return lines


def main():
    """Watches and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("deployment")
    parser.add_argument("plan", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--rate-of", choices=["sinks", "sources"], default="sinks")
    parser.add_argument("--results", help="wait for the end of the run and write what sinks wrote into this folder")
    arguments = parser.parse_args()
    plan = json.loads(arguments.plan.read_text(encoding="utf-8"))
    options, port = controller(arguments.deployment)
    runs = ask(arguments.program, "list", *options)["runs"]
    if not runs:
        sys.exit("there is no run")
    run = runs[0]["name"]
    found = looks(arguments.program, options, run, arguments.seconds)
    found = found[len(found) // 2:]
    if not found or not found[-1]["sinks"]:
        sys.exit("the run gave no figures in that time")
    last = found[-1]
    if arguments.results:
        print(f"measured; waiting for the end of the run, at most {PATIENCE} s", flush=True)
        last = fetch_at_its_end(arguments.program, options, run, arguments.results)
    lines = [("", "predicted", "measured"), *rows(plan, found, arguments.rate_of == "sources", last)]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    for line in lines:
        print(f"{line[0]:<{widths[0]}}  {line[1]:>{widths[1]}}  {line[2]:>{widths[2]}}".rstrip())
    print()
    missed = []
    for level in found[-1]["levels"]:
        name = level["level"]
        looked = [other["is_missed"] for figures in found for other in figures["levels"] if other["level"] == name]
        if arguments.results and name == "accuracy":
            # Some sinks are judged only when the run has ended.
            looked = [sink["accuracy_percent"] < level["wanted"] for sink in last["sinks"] if sink["accuracy_percent"] is not None]
        looked = [one for one in looked if one is not None]
        if not looked:
            print(f"{name}: nothing can be said yet")
            continue
        share = sum(looked) / len(looked)
        word = "met" if share == 0 else f"missed in {share:.0%} of the looks"
        print(f"{name}: {word}")
        if share > 0.5:
            missed.append(name)
    print(f"{last['emitted']} records emitted, {last['arrived']} arrived, {last['dead_letters']} dead letters, {last['restarts']} restarts")
    print(f"\npage: https://127.0.0.1:{port}/  (log in there with the token in {arguments.deployment}/admin.token)")
    sys.exit(1 if missed else 0)


try:
    main()
except KeyboardInterrupt:
    sys.exit(130)
