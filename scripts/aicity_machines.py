#!/usr/bin/env python3
"""Predicts times of examples/aicity on the machines of the JellyBean evaluation: examples/aicity/machines.yaml.

    python3 scripts/aicity_machines.py [PROFILE [OUT]]      OUT `-`: stdout

Our times on 2 processors (type `large` of examples/aicity/profile.yaml), as on a machine on which the middle one of our five detectors takes a
hundredth of what was published of object detection with 2 processors, whatever machine they were measured on; times published ratios to 2
processors:

- `detect`: medians of object detection, table 5.6 of the publication: 1412 ms with 2 processors, 721 with 4, 451.7 with 8, 19.7
  on a V100. Nothing is published of 16 and 48: the ratios of ResNets from examples/published-vqa.
- `appearance`: the ratios of ResNets in examples/published-vqa (geometric mean over five of them, p75); the publication's
  re-identification models are the same five networks.
- Everything else computes in one thread: as with 2 processors. What the engine adds (`overheads`) is as measured.
"""
import math
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "aicity"
PUBLISHED = ROOT / "examples" / "published-vqa" / "profiles.yaml"
MEASURED, SMALLEST = "large", "cpu-1"
TYPES = {"cpu-1": 2, "cpu-2": 4, "cpu-3": 8, "cpu-5": 16, "cpu-6": 48, "gpu-1": "V100"}
LESS_WORK = 100  # how much less our detectors have to do
DETECTION_MS = {"cpu-1": 1412.0, "cpu-2": 721.0, "cpu-3": 451.7, "gpu-1": 19.7}
UNITS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
TIME = re.compile(r"(?<![\w.-])([0-9.]+)(ns|us|ms|s)\b")


def service_blocks(text):
    """The entries of `services:`, each as its lines."""
    services = re.search(r"(?ms)^services:\n(.*?)(?=^\w|\Z)", text).group(1)
    return [block for block in re.split(r"(?m)^(?=  - )", services) if block.strip()]


def field(block, name):
    """The text of a key of an entry, in block or in flow form; none: it has none."""
    found = re.search(rf"(?m)(?:^\s+(?:- )?|[{{,]\s*){name}: \"?([^\s,}}\"]+)", block)
    return found and found.group(1)


def nanoseconds(text):
    return float(TIME.search(text)[1]) * UNITS[TIME.search(text)[2]]


def network_ratios():
    """Published time of the ResNets by type of machine, as a part of that on the smallest."""
    times = {}
    for block in service_blocks(PUBLISHED.read_text()):
        if field(block, "operator") == "extract_image_feature":
            p75 = nanoseconds(re.search(r"p75: (\S+?)[,}\s]", block).group(1))
            times.setdefault(field(block, "worker_type"), {})[field(block, "variant")] = p75
    smallest = times[SMALLEST]
    mean = lambda of: math.exp(sum(math.log(of[v] / smallest[v]) for v in of) / len(of))
    return {name: mean(of) for name, of in times.items() if name in TYPES}


def pace(kept):
    """How many times longer everything takes on the smallest published machine than where it was measured."""
    detection = [nanoseconds(re.search(r"p50: (\S+?)[,}\s]", block)[1]) for (operator, _), block in kept.items() if operator == "detect"]
    return DETECTION_MS[SMALLEST] * UNITS["ms"] / LESS_WORK / statistics.median(detection)


def ratios():
    """By type, then by operator; what is not there is 1."""
    networks = network_ratios()
    detection = {name: ms / DETECTION_MS[SMALLEST] for name, ms in DETECTION_MS.items()}
    return {
        name: {"detect": detection.get(name, networks[name]), "appearance": networks[name]} for name in TYPES
    }


def stretched(text, factor):
    """All times of an entry but pauses, times a factor."""
    times = lambda line: TIME.sub(lambda found: f"{round(nanoseconds(found[0]) * factor)}ns", line)
    return "".join(line if "pause: " in line else times(line) for line in text.splitlines(keepends=True))


def machines(profile):
    """The profile as a text."""
    own = [block for block in service_blocks(profile) if field(block, "worker_type") == MEASURED]
    # Of a model with several backends the one that is named last, which is the faster one on all machines that were measured.
    kept = {(field(block, "operator"), field(block, "variant")): block for block in own}
    workflow = re.search(r"(?m)^workflow: .*\n", profile).group(0)
    overheads = re.search(rf"(?ms)^  - worker_type: {MEASURED}\n.*?(^    overheads:\n(?:      [^\n]*\n)+)", profile).group(1)
    lines = [
        "# yaml-language-server: $schema=../../spec/schemas/profile.schema.json\n",
        "# Made by scripts/aicity_machines.py from profile.yaml: predictions for the machines of the JellyBean evaluation, by its\n"
        "# published times of 2 processors, a hundredth of them, and their ratios to other machines. No such machine was seen here.\n",
        "version: 1\n", workflow, "machines:\n",
    ]
    factors, slower = ratios(), pace(kept)
    for name, what in TYPES.items():
        of = factors[name]
        source = (
            f"measured on 2 processors, all x {slower:.3f}; by published ratios: detect x {of['detect']:.4f}, appearance x {of['appearance']:.4f}"
        )
        cores = "" if isinstance(what, str) else f"    cores: {what}\n"
        lines.append(f"  - worker_type: {name}\n    how: predicted\n{cores}    source: \"{source}\"\n{overheads}")
    lines.append("services:\n")
    for name in TYPES:
        for (operator, _), block in kept.items():
            block = stretched(block, slower * factors[name].get(operator, 1.0))
            block = re.sub(r"how: \w+", "how: predicted", block, count=1)
            lines.append(block.replace(f"worker_type: {MEASURED}\n", f"worker_type: {name}\n"))
    return "".join(lines)


def main():
    profile = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else EXAMPLE / "profile.yaml")
    text = machines(profile.read_text())
    if sys.argv[2:] == ["-"]:
        sys.stdout.write(text)
    else:
        pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else EXAMPLE / "machines.yaml").write_text(text)


if __name__ == "__main__":
    main()
