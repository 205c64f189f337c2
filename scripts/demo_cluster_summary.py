#!/usr/bin/env python3
"""Watches the run of a deployment for a while and puts what the plan predicted beside what was measured.

    python3 scripts/demo_cluster_summary.py TIDEMILL DEPLOYMENT PLAN.json [--seconds 45]

PLAN.json is what `tidemill plan --output json` printed. Measured is the mean of the figures of one-second looks of the second half
of the time; latencies are the median of their percentiles. Exit code 1 where a service level was missed in most of these looks.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time


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


def text(value, unit, digits=1):
    return "-" if value is None else f"{value:.{digits}f} {unit}"


def mean(values):
    values = [value for value in values if value is not None]
    return statistics.fmean(values) if values else None


def median(values):
    values = [value for value in values if value]
    return statistics.median(values) if values else None


def rows(plan, found):
    """Lines of the table: what, predicted, measured."""
    expectation = plan.get("expectation") or {}
    sinks = [figures["sinks"][0] for figures in found if figures["sinks"]]
    last = found[-1]
    accuracy = last["sinks"][0]["accuracy_percent"] if last["sinks"] else None
    lines = [
        ("rate", text(plan["rate"]["wanted"], "/s"), text(mean(sink["per_second"] for sink in sinks), "/s")),
        ("latency p50", text(expectation.get("p50_ms"), "ms"), text(median(sink["latency"]["p50_ms"] for sink in sinks), "ms")),
        ("latency p99", text(expectation.get("p99_ms"), "ms"), text(median(sink["latency"]["p99_ms"] for sink in sinks), "ms")),
        ("accuracy", text(plan.get("accuracy"), "%"), text(accuracy, "%")),
        ("cost", text(plan["cost"]["total"], "$/h", 4), text(mean(figures["cost"]["now"] for figures in found), "$/h", 4)),
    ]
    for role in last["workers"]:
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
    lines = [("", "predicted", "measured"), *rows(plan, found)]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    for line in lines:
        print(f"{line[0]:<{widths[0]}}  {line[1]:>{widths[1]}}  {line[2]:>{widths[2]}}".rstrip())
    print()
    missed = []
    for level in found[-1]["levels"]:
        looked = [other["is_missed"] for figures in found for other in figures["levels"] if other["level"] == level["level"]]
        looked = [one for one in looked if one is not None]
        if not looked:
            print(f"{level['level']}: nothing can be said yet")
            continue
        share = sum(looked) / len(looked)
        word = "met" if share == 0 else f"missed in {share:.0%} of the looks"
        print(f"{level['level']}: {word}")
        if share > 0.5:
            missed.append(level["level"])
    last = found[-1]
    print(f"{last['emitted']} records emitted, {last['arrived']} arrived, {last['dead_letters']} dead letters, {last['restarts']} restarts")
    print(f"\npage: https://127.0.0.1:{port}/  (log in there with the token in {arguments.deployment}/admin.token)")
    sys.exit(1 if missed else 0)


try:
    main()
except KeyboardInterrupt:
    sys.exit(130)
