#!/usr/bin/env python3
"""Puts the reports of two emulated runs side by side: the plan of the optimizer and the one that it is compared with.

    python3 scripts/demo_summary.py PLAN.json OTHER.json
    python3 scripts/demo_summary.py --dilation RUN.json    the dilation to repeat a run with; nothing where it kept up
"""
import json
import sys

UNITS = {"1/s": "/s", "$/h": " $/h", "%": " %", "ms": " ms"}
NO_EVIDENCE = "no_evidence"


def read(path):
    """A report."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def proposed(report):
    """The dilation that a run should have had; none where it kept up."""
    return report["emulation"]["overruns"]["proposed_dilation"]


def figures(report):
    """Predicted and measured value and verdict by quantity."""
    found = {}
    for row in report["emulation"]["comparison"]:
        name = row["quantity"].replace("_", " ")
        # Busy time and bytes are of one worker or link; plans have different ones.
        if row["quantity"] not in ("utilization", "traffic"):
            found.setdefault((name, row["unit"]), (row["predicted"], row["measured"], row["verdict"]))
            if row["quantity"] == "accuracy":
                ends = [row["predicted_range"], row.get("measured_range")]
                found["95 % interval", "of accuracy"] = (*ends, "")
    return found


def text(value, unit):
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(f"{end:.1f}" for end in value) + " %"
    digits = 4 if unit == "$/h" else 1
    return f"{value:.{digits}f}{UNITS.get(unit, ' ' + unit)}"


def cells(row, unit):
    """Predicted, measured and what becomes of the prediction."""
    if row is None:
        return ("-", "-", "")
    predicted, measured, verdict = row
    return (text(predicted, unit), text(measured, unit), verdict.replace("_", " "))


def reasons(report):
    """Why rows of the table are no evidence, or differ, and which ones: by the word and the reason."""
    found = {}
    for row in report["emulation"]["comparison"]:
        if row.get("reason") and row["quantity"] not in ("utilization", "traffic"):
            word = row["verdict"].replace("_", " ")
            found.setdefault((word, row["reason"]), []).append(row["quantity"].replace("_", " "))
    return found


def levels(report):
    """The service levels in words: `rate met, latency no evidence`."""
    words = {True: "met", False: "MISSED", None: "no evidence"}
    return ", ".join(f"{level['slo']} {words[level['met']]}" for level in report["slo"])


def main():
    """Prints the table and the sentences."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if sys.argv[1] == "--dilation":
        factor = proposed(read(sys.argv[2]))
        print("" if factor is None else factor)
        return
    reports = {"this plan": read(sys.argv[1]), "cloud-only": read(sys.argv[2])}
    ours, other = (figures(report) for report in reports.values())
    rows = [("", "this plan", "", "", "cloud-only", "", ""), ("",) + ("predicted", "measured", "") * 2]
    for key in ours:
        rows.append((key[0], *cells(ours[key], key[1]), *cells(other.get(key), key[1])))
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    left = (0, 3, 6)
    for row in rows:
        line = (cell.ljust(width) if column in left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(line).rstrip())
    print()
    for name, report in reports.items():
        print(f"{name}: {levels(report)}")
    for name, report in reports.items():
        for (word, reason), quantities in reasons(report).items():
            print(f"{name}: {', '.join(quantities)} {word}, because {reason}")
    if any(proposed(report) is not None for report in reports.values()):
        print("This machine did not keep up: run the demo again when nothing else runs on it.")
    cost = ("cost", "$/h")
    print(f"\nThis plan costs {text(ours[cost][1], '$/h')}, cloud-only would cost {text(other[cost][1], '$/h')}.")


main()
