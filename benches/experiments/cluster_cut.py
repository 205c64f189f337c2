"""Cuts an edge site off a cluster in network namespaces while a run of it goes on, and looks whether it does as the workflow says.

    python3 benches/experiments/cluster_cut.py --binary target/debug/tidemill                    30 s without the rest, `when_cut: buffer`
    python3 benches/experiments/cluster_cut.py --binary target/debug/tidemill --seconds 600      ten minutes
    ... --without                                                                    without `when_cut`, to see the difference
    ... --stop                                                                       with `when_cut: stop`
    ... --link hub-cloud                                                             the cloud is cut off, and the edge hears the controller
    ... --controller                                                                 the controller is killed meanwhile, too

The edge has a source and a filter on one worker and writes a file of its own on another one; what passes the filter goes to the cloud, which writes
a file, too. Controller at the hub; spare workers at the hub and in the cloud, which would get the work of a worker that is lost.
With `buffer` nothing may be started elsewhere, the file at the edge must grow while it is cut, and in the end both files must be those of a run
in one process that nothing happened to, to the byte.

Exit code 0: all of that is so. 1: it is not; what was found is told. 77: no namespaces here, nothing was tried.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

from cluster_lab import CONTROLLER, Stuck, carry_out

WORKERS = {"edge": 2, "hub": 1, "cloud": 2}
RATE = 400
# The edge is cut off; or the cloud, where the controller hears the edge on.
EDGE, CLOUD = "edge-hub", "hub-cloud"

PLAN = """version: 1
workflow: {name: alone}
tick: 20ms
checkpoint_every: 5
workers:
  - {id: edge-1, tier: edge, location: edge, worker_type: small}
  - {id: edge-2, tier: edge, location: edge, worker_type: small}
  - {id: cloud-1, tier: cloud, location: cloud, worker_type: small}
stages:
  - {id: readings, operator: readings, worker: edge-1}
  - {id: some, operator: some, worker: edge-1}
  - {id: here, operator: here, worker: edge-2}
  - {id: counted, operator: counted, worker: cloud-1}
  - {id: there, operator: there, worker: cloud-1}
classes:
  - {id: 0, share: 1, route: {readings: readings, some: some, here: here, counted: counted, there: there}}
edges:
  - {from: readings, to: some}
  - {from: some, to: here}
  - {from: some, to: counted}
  - {from: counted, to: there}
"""
# By file: the worker that has it.
OUTPUTS = {"out/here.jsonl": "edge-2", "out/there.csv": "cloud-1"}


def workflow(when_cut):
    told = f"{{from: some, when_cut: {when_cut}}}" if when_cut else "some"
    return f"""version: 1
name: alone
sources:
  - id: readings
    kind: csv
    key: key
    rate: {RATE}/s
    options: {{path: readings.csv, columns: {{key: text, at: int64, value: int64}}, event_time: at}}
operators:
  - {{id: some, kind: filter, input: readings, options: {{where: "value % 7 != 3"}}}}
  - {{id: counted, kind: window, input: {told}, options: {{size: 1s, group_by: [key], aggregates: [{{function: count, as: n}}]}}}}
sinks:
  - {{id: here, kind: jsonl, input: some, options: {{path: out/here.jsonl}}}}
  - {{id: there, kind: csv, input: counted, options: {{path: out/there.csv}}}}
run: {{tick: 20ms, checkpoint_every: 5}}
"""


def inputs(folder, rows, when_cut):
    folder.mkdir(parents=True)
    (folder / "workflow.yaml").write_text(workflow(when_cut))
    (folder / "plan.yaml").write_text(PLAN)
    lines = ["key,at,value"]
    lines += [f"k{number % 23:02},{1_700_000_000_000 + number * 5},{number}" for number in range(rows)]
    (folder / "readings.csv").write_text("\n".join(lines) + "\n")


def undisturbed(lab, folder):
    done = subprocess.run(
        [lab.binary, "run", folder / "workflow.yaml", "--plan", folder / "plan.yaml", "--rate", "max", "--quiet"],
        capture_output=True, text=True, env=lab.environment(), check=False,
    )
    if done.returncode != 0:
        raise Stuck(f"the undisturbed run ends with {done.returncode}: {done.stderr}")
    return {file: (folder / file).read_bytes() for file in OUTPUTS}


def length(path):
    return path.stat().st_size if path.exists() else 0


def campaign(lab, options):
    """What was found, for people and programs."""
    when_cut = "{stop: {after: 3s}}" if options.stop else None if options.without else f"{{buffer: {{size: {options.size}}}}}"
    folder = lab.folder / "workflow"
    inputs(folder, int(RATE * (options.seconds + options.more)), when_cut)
    expected = undisturbed(lab, folder)
    for file in OUTPUTS:
        (folder / file).unlink()
    run = "alone"
    lab.submit(folder / "workflow.yaml", folder / "plan.yaml", run)
    paths = {file: lab.folder / f"w-{worker}" / "runs" / run / worker / file for file, worker in OUTPUTS.items()}
    lab.until("both files grow", 60, lambda: all(length(path) > 300 for path in paths.values()))
    told = {"seconds": options.seconds, "when_cut": when_cut}
    before = length(paths["out/here.jsonl"])
    lab.network.tell(f"cut {options.link}")
    begin = time.monotonic()
    if options.controller:
        time.sleep(options.seconds / 3)
        lab.services[CONTROLLER].kill(back_after=options.seconds / 6)
    time.sleep(max(options.seconds - 0.5 - (time.monotonic() - begin), 0))
    status = lab.status(run)
    told["status_while_cut"] = status.get("cuts") if status else None
    shown = lab.ask("status", run, json_output=False)
    told["shown_while_cut"] = [line.strip() for line in (shown or "").splitlines() if "cut since" in line]
    told["grown_at_the_edge"] = length(paths["out/here.jsonl"]) - before
    time.sleep(max(0.0, options.seconds - (time.monotonic() - begin)))
    lab.network.tell(f"heal {options.link}")
    healed = time.monotonic()

    looks = []

    def ended():
        now = lab.status(run)
        for cut in (now or {}).get("cuts", []):
            look = (cut["stage"], cut["kept_bytes"])
            looks.append((round(time.monotonic() - healed, 1), *look))
        return now is not None and now["state"] not in ("starting", "running", "waiting")

    lab.until("the run has ended", 120 + options.seconds, ended, pause=0.3)
    status = lab.status(run)
    told["cuts_after"] = looks
    told["ended_after"] = round(time.monotonic() - healed, 1)
    told |= {key: status[key] for key in ("state", "reason", "restarts", "emitted", "arrived", "dead_letters")}
    text = lab.ask("events", "--output", "json", json_output=False) or ""
    events = [event.get("event", event) for event in map(json.loads, text.splitlines())]
    kinds = ("worker_lost", "role_moved", "role_started", "run_waits", "edge_cut", "edge_back", "edge_delivered")
    told["events"] = [f"{event['kind']}: {event['text']}" for event in events if event["kind"] in kinds]
    found = {file: path.read_bytes() if path.exists() else b"" for file, path in paths.items()}
    told["same"] = {file: found[file] == content for file, content in expected.items()}
    moved = [event for event in events if event["kind"] == "role_moved"]
    wrong = []
    if options.stop:
        if status["state"] != "failed" or "when_cut: stop" not in (status["reason"] or ""):
            wrong.append("the run did not end because of the cut")
        wrong += [f"{file} is not the beginning of what it should be" for file in OUTPUTS
                  if not expected[file].startswith(found[file])]
    else:
        if status["state"] != "complete":
            wrong.append(f"the run is {status['state']}")
        wrong += [f"{file} differs" for file, same in told["same"].items() if not same]
        if not options.without:
            lost = [event for event in events if event["kind"] == "worker_lost"]
            wrong += [] if lost or options.seconds < 3 else ["the controller did not notice that the edge was silent"]
            wrong += ["a role was given to another worker"] if moved else []
            # What the cloud had not kept is computed again there.
            wrong += ["slots were started again"] if status["restarts"] and options.link == EDGE else []
            wrong += [] if told["grown_at_the_edge"] > 300 else ["the edge did not go on"]
    told["wrong"] = wrong
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the edge is cut")
    parser.add_argument("--more", type=float, default=16.0, help="seconds that the run lasts besides")
    parser.add_argument("--without", action="store_true", help="a workflow that says nothing of cuts")
    parser.add_argument("--stop", action="store_true", help="a run that stops")
    parser.add_argument("--controller", action="store_true", help="kills the controller while the edge is cut off")
    parser.add_argument("--link", choices=[EDGE, CLOUD], default=EDGE, help="what is cut")
    parser.add_argument("--size", default="512MiB", help="what the edge may keep")
    parser.add_argument("--json", type=pathlib.Path, help="a file for what was found")
    parser.add_argument("--keep", action="store_true", help="leaves the folder")
    options = parser.parse_args()
    return carry_out(campaign, WORKERS, options)


if __name__ == "__main__":
    sys.exit(main())
