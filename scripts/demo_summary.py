#!/usr/bin/env python3
"""Puts the reports of two emulated runs side by side: the plan of the optimizer and the one that it is compared with.

    python3 scripts/demo_summary.py PLAN.json OTHER.json
"""
import json
import sys

UNITS = {"1/s": "/s", "$/h": " $/h", "%": " %", "ms": " ms"}


def figures(path):
    """Predicted and measured value by quantity, and the total cost measured."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    found = {}
    for row in report["emulation"]["comparison"]:
        name = row["quantity"].replace("_", " ")
        # Busy time and bytes are of one worker or link; plans have different ones.
        if row["quantity"] not in ("utilization", "link_bytes", "link"):
            found.setdefault((name, row["unit"]), (row["predicted"], row["measured"]))
    return found


def text(value, unit):
    """A value as people read it."""
    if value is None:
        return "-"
    digits = 4 if unit == "$/h" else 1
    return f"{value:.{digits}f}{UNITS.get(unit, ' ' + unit)}"


def main():
    """Prints the table and the sentence."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    ours, other = figures(sys.argv[1]), figures(sys.argv[2])
    rows = [("", "this plan", "", "cloud-only", ""), ("", "predicted", "measured", "predicted", "measured")]
    for key in ours:
        predicted, measured = ours[key]
        others = other.get(key, (None, None))
        rows.append((key[0], *(text(value, key[1]) for value in (predicted, measured, *others))))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join(cells).rstrip())
    cost = ("cost", "$/h")
    print(f"\nThis plan costs {text(ours[cost][1], '$/h')}, cloud-only would cost {text(other[cost][1], '$/h')}.")


main()
