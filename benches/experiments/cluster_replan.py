"""Slows a link of a cluster in network namespaces down while a run goes on over it, and looks whether the run gets another plan.

    python3 benches/experiments/cluster_replan.py --binary target/debug/tidemill              the link from the edge at 0.4 Mbit/s instead of 100
    python3 benches/experiments/cluster_replan.py --binary target/debug/tidemill --mbit 0.5   ... at another rate

A source at the edge, a filter that is planned in the cloud, where a worker is cheaper, as long as the link carries the rows. When the agents have
measured that it does not, the filter has to move to the edge (`--replan auto`), every row has to be in the output once, and the event has to
say why. Messages are as large as the profile says, not as the rows are: the plan is what is looked at here.

Exit code 0: all of that is so. 1: it is not; what was found is told. 77: no namespaces here, nothing was tried.
"""
import argparse
import json
import pathlib
import sys
import time

from cluster_lab import CONTROLLER, Stuck, carry_out

WORKERS = {"edge": 1, "cloud": 1}
RATE = 100
# Seconds of patience pass so much faster; what the agents measure of links takes its time.
PACE = "10"
TYPES = {"edge-1": ("small", "0.05 $/h"), "cloud-1": ("large", "0.02 $/h")}

WORKFLOW = f"""version: 1
name: slowed
sources:
  - id: readings
    kind: csv
    key: key
    rate: {RATE}/s
    options: {{path: readings.csv, columns: {{key: text, at: int64, value: int64}}, event_time: at}}
operators:
  - {{id: some, kind: filter, input: readings, options: {{where: "value % 7 != 3"}}}}
sinks:
  - {{id: rows, kind: jsonl, input: some, options: {{path: out/rows.jsonl}}}}
run: {{tick: 20ms, checkpoint_every: 5}}
"""

# 100 rows of 800 B a second are 0.64 Mbit/s: any machine measures more of a link that has 100; what passes the filter is little.
PROFILE = """version: 1
workflow: {name: slowed}
machines: [{worker_type: small, how: predicted}, {worker_type: large, how: predicted}]
services:
  - {operator: some, worker_type: small, how: predicted, batches: [{batch: 1, mean: 1ms, deviation: 1us, p50: 1ms, p75: 1ms, p90: 1ms}]}
  - {operator: some, worker_type: large, how: predicted, batches: [{batch: 1, mean: 1ms, deviation: 1us, p50: 1ms, p75: 1ms, p90: 1ms}]}
messages:
  - {from: readings, to: some, bytes_per_record: 800B}
  - {from: some, to: rows, bytes_per_record: 20B}
"""


def inputs(folder, rows):
    folder.mkdir(parents=True)
    (folder / "workflow.yaml").write_text(WORKFLOW)
    (folder / "profile.yaml").write_text(PROFILE)
    lines = ["key,at,value"]
    lines += [f"k{number % 23:02},{1_700_000_000_000 + number * 5},{number}" for number in range(rows)]
    (folder / "readings.csv").write_text("\n".join(lines) + "\n")


def place_of(plan, operator):
    return next(stage["worker"] for stage in plan["stages"] if stage["operator"] == operator)


def campaign(lab, options):
    """What was found, for people and programs."""
    folder = lab.folder / "workflow"
    inputs(folder, int(RATE * options.seconds))
    run = "slowed"
    rates = lambda: [link.get("bits_per_second") for link in (lab.ask("workers", "--links") or {}).get("links", [])
                     if (link["from"], link["to"]) == ("edge-1", "cloud-1")]
    lab.until("the way is measured", 60, lambda: any(rates()), pause=0.5)
    told = {"measured_before": rates()[0]}
    lab.ask("submit", str(folder / "workflow.yaml"), "--profiles", str(folder / "profile.yaml"), "--as", run, "--replan", "auto", patience=60)
    plan = lambda: (lab.ask("replan", run, "--show") or {}).get("replan", {}).get("current")
    told["filter_before"] = place_of(plan(), "some")
    if told["filter_before"] != "cloud-1":
        raise Stuck(f"the filter is not planned in the cloud: {told}")
    lab.until("it runs", 60, lambda: (lab.status(run) or {"arrived": 0})["arrived"] > 200, pause=0.3)
    lab.network.tell(f"shape edge-hub {options.mbit}")
    begin = time.monotonic()
    events = lambda: [event.get("event", event) for event in map(json.loads, (
        lab.ask("events", "--output", "json", json_output=False) or "").splitlines())]
    print(json.dumps(told), flush=True)
    lab.until("another plan is taken", options.seconds, lambda: any(
        event["kind"] == "plan_changed" for event in events()), pause=0.5)
    told["seconds_to_change"] = round(time.monotonic() - begin, 1)
    told["measured_after"] = rates()[0]
    told["filter_after"] = place_of(plan(), "some")
    kinds = ("replan_proposed", "replan_accepted", "plan_changed")
    told["events"] = [f"{event['kind']}: {event['text']}" for event in events() if event["kind"] in kinds]
    lab.until("the run is complete", 60 + options.seconds, lambda: (lab.status(run) or {"state": ""})["state"] == "complete", pause=0.5)
    out = next(lab.folder.glob("w-*/runs/slowed/*/out/rows.jsonl"))
    values = [json.loads(line)["value"] for line in out.read_text().splitlines()]
    expected = [number for number in range(int(RATE * options.seconds)) if number % 7 != 3]
    why = " ".join(told["events"])
    wrong = []
    wrong += [] if told["filter_before"] == "cloud-1" else ["the filter was not planned in the cloud"]
    wrong += [] if told["filter_after"] == "edge-1" else ["the filter did not move to the edge"]
    wrong += [] if sorted(values) == expected else [f"{len(values)} rows instead of {len(expected)}"]
    wrong += [] if "the route from edge/edge to cloud/cloud carries " in why else ["the event does not say that the link is why"]
    told["wrong"] = wrong
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--seconds", type=float, default=150.0, help="how long the source goes on")
    parser.add_argument("--mbit", type=float, default=0.4, help="the rate of the link from the edge then; it is 100 before")
    parser.add_argument("--json", type=pathlib.Path, help="a file for what was found")
    parser.add_argument("--keep", action="store_true", help="leaves the folder")
    options = parser.parse_args()
    more = {CONTROLLER: ["--replan-pace", PACE]}
    for worker, (kind, price) in TYPES.items():
        more[worker] = ["--type", kind, "--price", price]
    return carry_out(campaign, WORKERS, options, more)


if __name__ == "__main__":
    sys.exit(main())
