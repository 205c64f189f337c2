#!/usr/bin/env python3
"""Writes a trace of a day with bursts for `tidemill simulate --trace`: lines of time and rate factor.

The rate follows a diurnal curve (a cosine from the lowest to the highest factor, with its peak at an hour of the day) and
has bursts on top: they begin at random (a Poisson process), rise at once to a random height (Pareto distributed, so that
few are large) and decay exponentially. Only the standard library is used; the same seed gives the same trace.

    scripts/bursty_trace.py > day.csv
    scripts/bursty_trace.py --hours 2 --step 1 --bursts 6 --seed 3 > two-hours.csv
"""
import argparse
import math
import random
import sys


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0, help="length of the trace (default: 24)")
    parser.add_argument("--step", type=float, default=10.0, help="seconds of a line (default: 10)")
    parser.add_argument("--lowest", type=float, default=0.3, help="lowest factor of the curve (default: 0.3)")
    parser.add_argument("--highest", type=float, default=1.0, help="highest factor of the curve (default: 1)")
    parser.add_argument("--peak", type=float, default=14.0, help="hour of the highest factor (default: 14)")
    parser.add_argument("--bursts", type=float, default=1.0, help="bursts per hour, on average (default: 1)")
    parser.add_argument("--height", type=float, default=0.5, help="least height of a burst, a factor (default: 0.5)")
    parser.add_argument("--tallest", type=float, default=4.0, help="most that all bursts add (default: 4)")
    parser.add_argument("--decay", type=float, default=60.0, help="seconds in which a burst falls to 37 %% (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random numbers (default: 1)")
    chosen = parser.parse_args()
    for name in ("hours", "step", "decay", "height"):
        if not getattr(chosen, name) > 0:
            parser.error(f"--{name} is above 0")
    if not 0 <= chosen.lowest <= chosen.highest or chosen.highest == 0:
        parser.error("factors are at least 0, and --highest is not below --lowest")
    if chosen.bursts < 0 or chosen.tallest < 0:
        parser.error("--bursts and --tallest are at least 0")
    return chosen


def curve(hour: float, chosen: argparse.Namespace) -> float:
    """The diurnal part at an hour."""
    middle = (chosen.lowest + chosen.highest) / 2
    swing = (chosen.highest - chosen.lowest) / 2
    return middle + swing * math.cos(2 * math.pi * (hour - chosen.peak) / 24)


def main() -> int:
    chosen = arguments()
    rng = random.Random(chosen.seed)
    seconds = chosen.hours * 3600
    per_second = chosen.bursts / 3600

    def gap() -> float:
        return rng.expovariate(per_second) if per_second > 0 else math.inf

    out = sys.stdout
    out.write("time,factor\n")
    height = 0.0
    burst = gap()
    for index in range(max(1, round(seconds / chosen.step))):
        time = index * chosen.step
        height *= math.exp(-chosen.step / chosen.decay) if index else 1.0
        while burst <= time:
            height += chosen.height * rng.paretovariate(1.5)
            burst += gap()
        height = min(height, chosen.tallest)
        factor = curve(time / 3600, chosen) + height
        out.write(f"{time:.10g}s,{factor:.4f}\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.exit(1)
