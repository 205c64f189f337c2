"""The example of spoken questions about pictures on a cluster in network namespaces, at its rated load, for a long time.

    python3 benches/experiments/cluster_soak.py --binary target/release/tidemill --minutes 30 --csv soak.csv

Every ten seconds: memory, descriptors, threads and processor time of each process, as a line of the table. Exit code 77: no namespaces here.
"""
import argparse
import csv
import json
import os
import pathlib
import re
import sys
import time

import cluster_lab
from cluster_lab import CONTROLLER, Lab, NotPermitted, Stuck

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKERS = {"edge": 2, "hub": 2, "cloud": 2}
# Models of the plan; each takes a fraction of a millisecond.
MODELS = ["scene-features-tiny", "speech-small", "answerer-small"]
PLAN = """version: 1
workflow: {name: vqa}
tick: 50ms
checkpoint_every: 4
workers:
  - {id: edge-1, tier: edge, worker_type: small}
  - {id: edge-2, tier: edge, worker_type: small}
  - {id: hub-1, tier: hub, worker_type: small}
  - {id: hub-2, tier: hub, worker_type: small}
  - {id: cloud-1, tier: cloud, worker_type: small}
  - {id: cloud-2, tier: cloud, worker_type: small}
stages:
  - {id: images, operator: images, worker: edge-1}
  - {id: questions, operator: questions, worker: edge-2}
  - {id: scene_features, operator: scene_features, variant: scene-features-tiny, worker: edge-1, max_batch: 8, batching_budget: 20ms}
  - {id: speech, operator: speech, variant: speech-small, worker: hub-1, max_batch: 8, batching_budget: 20ms}
  - {id: pair, operator: pair, worker: hub-2}
  - {id: answerer, operator: answerer, variant: answerer-small, worker: cloud-1, max_batch: 8, batching_budget: 20ms}
  - {id: answers, operator: answers, worker: cloud-2}
classes:
  - {id: 0, share: 1, route: {images: images, questions: questions, scene_features: scene_features, speech: speech, pair: pair, answerer: answerer, answers: answers}}
edges:
  - {from: images, to: scene_features}
  - {from: questions, to: speech}
  - {from: scene_features, to: pair}
  - {from: speech, to: pair, input: 1}
  - {from: pair, to: answerer}
  - {from: answerer, to: answers}
"""
HERTZ = os.sysconf("SC_CLK_TCK")


def workflow(folder, rate):
    """The example over its own inputs again and again, with the models of the plan only."""
    folder.mkdir(parents=True)
    example = folder / "examples" / "vqa"
    example.mkdir(parents=True)
    (folder / "models").symlink_to(ROOT / "models")
    (example / "data").symlink_to(ROOT / "examples" / "vqa" / "data")
    text = (ROOT / "examples" / "vqa" / "workflow.yaml").read_text()
    text = re.sub(r"(    kind: (?:image|wav)_directory\n)", r"\1    repeat: true\n", text)
    text = text.replace("rate: 40/s", f"rate: {rate:g}/s")
    # Pictures and questions lie on the workers, as those of cameras would; they are not sent.
    for kind in ("images", "questions"):
        text = text.replace(f"{{path: data/{kind}}}", f"{{path: '{ROOT}/examples/vqa/data/{kind}'}}")
    models = [line for line in text.splitlines() if line.startswith("      - ../../models/")]
    for line in models:
        if not any(line.split("#")[0].strip().endswith(f"/{model}.yaml") for model in MODELS):
            text = text.replace(f"{line}\n", "")
    (example / "workflow.yaml").write_text(text[text.index("version:"):])
    (example / "plan.yaml").write_text(PLAN)
    return example


def look(pid):
    """Memory in bytes, descriptors, threads, seconds of processor time; none: it is gone."""
    folder = pathlib.Path(f"/proc/{pid}")
    try:
        status = (folder / "status").read_text()
        fields = (folder / "stat").read_text().rsplit(") ", 1)[1].split()
        memory = int(re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE).group(1)) * 1024
        threads = int(re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE).group(1))
        return memory, len(os.listdir(folder / "fd")), threads, (int(fields[11]) + int(fields[12])) / HERTZ
    except (OSError, AttributeError):
        return None


def processes(lab):
    """Kind, name and number of each process of the cluster."""
    found = [("controller" if name == CONTROLLER else "agent", name, service.process.pid)
             for name, service in lab.services.items()]
    return found + [("run", name, pid) for name, pids in lab.hosts().items() for pid in pids]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", required=True)
    arguments.add_argument("--minutes", type=float, default=float(os.environ.get("TIDEMILL_SOAK_MINUTES", "2")))
    arguments.add_argument("--every", type=float, default=10.0, help="seconds between two looks")
    arguments.add_argument("--rate", type=float, default=40.0, help="pictures and questions a second")
    arguments.add_argument("--csv", required=True, type=pathlib.Path)
    arguments.add_argument("--json", type=pathlib.Path, help="what became of the run")
    arguments.add_argument("--keep", action="store_true")
    options = arguments.parse_args()
    try:
        lab = Lab(options.binary, WORKERS, keep=options.keep)
    except NotPermitted:
        return cluster_lab.NOT_PERMITTED
    left, code = [], 0
    try:
        lab.start()
        example = workflow(lab.folder / "workflow", options.rate)
        lab.submit(example / "workflow.yaml", example / "plan.yaml", "soak")
        lab.until("records arrive", 180, lambda: ((lab.status("soak") or {}).get("arrived") or 0) > 0, pause=0.5)
        before, begin = lab.status("soak"), time.monotonic()
        with options.csv.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["seconds", "kind", "process", "pid", "memory_bytes", "descriptors", "threads", "processor_seconds"])
            following = begin
            while time.monotonic() < begin + options.minutes * 60:
                seconds = time.monotonic() - begin
                for kind, name, pid in processes(lab):
                    found = look(pid)
                    if found is not None:
                        rows.writerow([f"{seconds:.1f}", kind, name, pid, *found])
                file.flush()
                following += options.every
                time.sleep(max(0.0, following - time.monotonic()))
        after, seconds = lab.status("soak"), time.monotonic() - begin
        told = {
            "version": 1, "minutes": options.minutes, "rate_wanted": options.rate,
            "rate_measured": round((after["arrived"] - before["arrived"]) / seconds, 2), "arrived": after["arrived"],
            "dead_letters": after["dead_letters"], "restarts": after["restarts"], "state": after["state"],
            "load_at_the_end": pathlib.Path("/proc/loadavg").read_text().split()[:3],
        }
        lab.ask("cancel", "soak")
        lab.until("the run is cancelled", 30, lambda: (lab.status("soak") or {}).get("state") == "cancelled")
        left = lab.end()
        told["left"] = left
        if options.json:
            options.json.write_text(json.dumps(told, indent=1) + "\n")
        print(json.dumps(told))
    except Stuck as stuck:
        print(stuck, file=sys.stderr)
        code = 1
    finally:
        lab.remove()
    for what in left:
        print(f"left behind: {what}", file=sys.stderr)
    return 1 if left else code


if __name__ == "__main__":
    sys.exit(main())
