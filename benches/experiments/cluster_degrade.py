"""Cuts an edge site off the cloud that answers its records, in network namespaces, and looks whether a smaller model at the edge answers meanwhile.

    python3 benches/experiments/cluster_degrade.py --binary target/debug/tidemill                  18 s without the cloud, `when_cut: degrade`
    python3 benches/experiments/cluster_degrade.py --binary target/debug/tidemill --seconds 60     a minute

The edge has spoken questions and writes what was said into a file; the cloud has the model that hears it, the edge a smaller one in its place.
While it is cut the file must grow on, with answers of the smaller model; in the end each question must be in it once, and the cluster must say how
many each of both has answered. A link that falls silent is noticed after 9 s.

Exit code 0: all of that is so. 1: it is not; what was found is told. 77: no namespaces here, nothing was tried.
"""
import argparse
import collections
import json
import pathlib
import shutil
import sys
import time

from cluster_lab import carry_out

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKERS = {"edge": 1, "hub": 0, "cloud": 1}
RATE = 15
HERE, THERE = "speech-small", "speech-large"
LINK = "edge-hub"

WORKFLOW = """version: 1
name: hear
sources:
  - {id: questions, kind: wav_directory, key: key, rate: %(rate)s/s, options: {path: questions}}
operators:
  - id: speech
    kind: ml
    input: {from: questions, when_cut: {degrade: {variant: %(here)s, after: 500ms}}}
    variants: [%(models)s/%(there)s.yaml, %(models)s/%(here)s.yaml]
    options: {variant_column: answered_by}
sinks:
  - {id: texts, kind: jsonl, input: speech, options: {path: out/texts.jsonl, columns: [key, question, answered_by]}}
run: {tick: 100ms, checkpoint_every: 5}
"""

PLAN = """version: 1
workflow: {name: hear}
tick: 100ms
checkpoint_every: 5
workers:
  - {id: edge-1, tier: edge, location: edge, worker_type: small}
  - {id: cloud-1, tier: cloud, location: cloud, worker_type: small}
stages:
  - {id: questions, operator: questions, worker: edge-1}
  - {id: speech, operator: speech, variant: %(there)s, worker: cloud-1}
  - {id: texts, operator: texts, worker: edge-1}
classes:
  - {id: 0, share: 1, route: {questions: questions, speech: speech, texts: texts}}
edges:
  - {from: questions, to: speech, link: memfd}
  - {from: speech, to: texts, link: memfd}
"""


def inputs(folder, questions):
    """The workflow, its plan, models, and so many questions."""
    values = {"rate": RATE, "here": HERE, "there": THERE, "models": "models"}
    (folder / "questions").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "workflow.yaml").write_text(WORKFLOW % values)
    (folder / "plan.yaml").write_text(PLAN % values)
    for model in (HERE, THERE):
        for file in (ROOT / "models" / "vqa").glob(f"{model}.*"):
            shutil.copy(file, folder / "models")
    sounds = sorted((ROOT / "examples" / "vqa" / "data" / "questions").glob("*.wav"))
    for number in range(questions):
        shutil.copy(sounds[number % len(sounds)], folder / "questions" / f"q{number:05}.wav")


def rows(path):
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def campaign(lab, options):
    """What was found, for people and programs."""
    folder = lab.folder / "workflow"
    questions = int(RATE * (options.seconds + options.more))
    inputs(folder, questions)
    run = "hear"
    lab.submit(folder / "workflow.yaml", folder / "plan.yaml", run)
    path = lab.folder / "w-edge-1" / "runs" / run / "edge-1" / "out" / "texts.jsonl"
    lab.until("questions are answered", 60, lambda: len(rows(path)) > RATE)
    before = rows(path)
    lab.network.tell(f"cut {LINK}")
    time.sleep(options.seconds)
    grown = rows(path)[len(before):]
    lab.network.tell(f"heal {LINK}")
    healed = time.monotonic()
    seen = []

    def ended():
        status = lab.status(run)
        for stand_in in (status or {}).get("stand_ins", []):
            seen.append((round(time.monotonic() - healed, 1), stand_in["answers"], stand_in["answered_here"]))
        return status is not None and status["state"] not in ("starting", "running", "waiting")

    lab.until("the run has ended", 90 + options.seconds, ended, pause=0.3)
    status = lab.status(run)
    found = rows(path)
    answers = collections.Counter(row["answered_by"] for row in found)
    text = lab.ask("events", "--output", "json", json_output=False) or ""
    events = [event.get("event", event) for event in map(json.loads, text.splitlines())]
    kinds = ("degraded", "restored", "role_moved", "edge_cut", "edge_back", "edge_delivered")
    told = {
        "seconds": options.seconds,
        "state": status["state"],
        "reason": status["reason"],
        "restarts": status["restarts"],
        "questions": questions,
        "answered_by": dict(answers),
        "answered_while_cut": dict(collections.Counter(row["answered_by"] for row in grown)),
        "seen_after": seen[:1] + seen[-1:],
        "events": [f"{event['kind']}: {event['text']}" for event in events if event["kind"] in kinds],
        "ended_after": round(time.monotonic() - healed, 1),
    }
    wrong = []
    if status["state"] != "complete" or status["restarts"]:
        wrong.append(f"the run is {status['state']}, with {status['restarts']} restarts of slots")
    expected = [f"q{number:05}" for number in range(questions)]
    if [row["key"] for row in found] != expected:
        wrong.append(f"the file has {len(found)} rows, not each of {questions} questions once and in order")
    if not told["answered_while_cut"].get(HERE):
        wrong.append("the smaller model did not answer while the edge was cut")
    if not answers[HERE] or not answers[THERE]:
        wrong.append("not both have answered")
    if seen and seen[-1][2] != answers[HERE]:
        wrong.append(f"the cluster says that {seen[-1][2]} were answered at the edge, the file that {answers[HERE]}")
    if not any(event.startswith("restored") and HERE in event for event in told["events"]):
        wrong.append("no event tells who has answered")
    told["wrong"] = wrong
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--seconds", type=float, default=18.0, help="how long the edge is cut")
    parser.add_argument("--more", type=float, default=12.0, help="seconds that the run lasts besides")
    parser.add_argument("--json", type=pathlib.Path, help="a file for what was found")
    parser.add_argument("--keep", action="store_true", help="leaves the folder")
    options = parser.parse_args()
    return carry_out(campaign, WORKERS, options)


if __name__ == "__main__":
    sys.exit(main())
