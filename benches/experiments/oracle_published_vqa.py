#!/usr/bin/env python3
"""Optimal costs of the published VQA case by another solver and another model, for optimizer/tests/published_vqa_optima.csv.

The planner works with groups of equal workers, flows between places and variant binaries. This script knows none of
that: every worker stands alone, every pair of workers has a flow, every accepted accuracy row is solved by itself, and
HiGHS (by scipy.optimize.milp) does the work. After the integer solution the binaries are fixed and the linear rest
is solved again, so that the tolerance of integers (1e-6) does not show in the cost.

    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install scipy
    /tmp/oracle/bin/python benches/experiments/oracle_published_vqa.py CASE.json optimizer/tests/published_vqa_optima.csv

CASE.json is the published case (see optimizer/tests). Tests read the table only; nothing in the default path runs this.
"""

import argparse
import csv
import json

import numpy
import scipy
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import lil_matrix

IMAGE, SPEECH, ANSWER = "ExtractImageFeature", "SpeechRecognition", "VQA"
OPERATORS = [IMAGE, SPEECH, ANSWER]
# Name, one operator per worker, traffic to a lower tier allowed.
SETTINGS = [
    ("one_operator_per_worker", True, False),
    ("shared", False, False),
    ("shared_with_return_traffic", False, True),
]
RATES = [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 90, 100, 120, 150, 200]
ACCURACIES = [54.0, 54.2, 55.0, 55.5, 56.0, 56.7, 57.0, 58.0, 58.3]
# Around the published point the rate is also swept finely, to meet the steps of the cost.
FINE_RATES = [22.5, 27.3, 32.1, 36.6, 38.0, 39.0, 39.9, 40.1, 41.0, 42.0, 43.7, 47.9, 52.2, 57.7, 61.4, 66.6, 71.9]
KIB_IN_GIB = 2**20
FORBIDDEN = None


class Case:
    """The published inputs, worker by worker."""

    def __init__(self, path, percentile):
        with open(path, encoding="utf-8") as file:
            case = json.load(file)
        self.tier = {}
        for number, tier in enumerate(case["tiers"]):
            for worker in tier["workers"]:
                self.tier[worker] = number
        self.workers = list(self.tier)
        self.price = case["worker_price_per_hour"]
        self.rows = case["accuracy_end_to_end"]
        self.message = case["message_KiB"]
        self.up = case["link_price_per_GiB"]["edge->cloud"]
        self.down = case["link_price_per_GiB"]["cloud->edge"]
        self.seconds = {
            (operator, variant, worker): latency[percentile] / 1000.0
            for operator, variants in case["latency"].items()
            for variant, workers in variants.items()
            for worker, latency in workers.items()
        }

    def link_price(self, start, end, return_traffic):
        """$ per GiB between two tiers, FORBIDDEN where nothing may go."""
        if start == end:
            return 0.0
        if start < end:
            return self.up
        return self.down if return_traffic else FORBIDDEN


class Model:
    """A minimisation with rows added one by one."""

    def __init__(self):
        self.cost, self.binary, self.upper, self.rows = [], [], [], []

    def column(self, cost, upper, binary=False):
        self.cost.append(cost)
        self.binary.append(binary)
        self.upper.append(upper)
        return len(self.cost) - 1

    def row(self, terms, low, high):
        self.rows.append((terms, low, high))

    def solve(self):
        """The least cost, or None where there is no solution."""
        matrix = lil_matrix((len(self.rows), len(self.cost)))
        low, high = numpy.empty(len(self.rows)), numpy.empty(len(self.rows))
        for number, (terms, least, most) in enumerate(self.rows):
            for column, factor in terms:
                matrix[number, column] += factor
            low[number], high[number] = least, most
        constraints = LinearConstraint(matrix.tocsc(), low, high)
        binary = numpy.array(self.binary)
        lower, upper = numpy.zeros(len(self.cost)), numpy.array(self.upper)
        options = {"mip_rel_gap": 0.0}
        found = milp(
            self.cost,
            integrality=binary.astype(int),
            bounds=scipy.optimize.Bounds(lower, upper),
            constraints=constraints,
            options=options,
        )
        if found.status == 2:
            return None
        if found.status != 0:
            raise RuntimeError(found.message)
        fixed = numpy.round(found.x)
        lower = numpy.where(binary, fixed, lower)
        upper = numpy.where(binary, fixed, upper)
        polished = milp(
            self.cost, bounds=scipy.optimize.Bounds(lower, upper), constraints=constraints
        )
        if polished.status != 0:
            raise RuntimeError(f"integer solution does not survive rounding: {polished.message}")
        return polished.fun


def cost_of_row(case, row, rate, alone, return_traffic):
    """The least $ per hour with the variants of one accuracy row, or None."""
    model = Model()
    per_hour = rate * 3600.0 / KIB_IN_GIB
    used = {worker: model.column(case.price[worker], 1.0, binary=True) for worker in case.workers}
    share = {}
    for operator in OPERATORS:
        source_message = {
            IMAGE: case.message[f"ReadImage->{IMAGE}"],
            SPEECH: case.message[f"ReadSpeech->{SPEECH}"],
            ANSWER: 0.0,
        }[operator]
        for worker in case.workers:
            # Sources stand in the lowest tier.
            price = case.link_price(0, case.tier[worker], return_traffic)
            share[operator, worker] = model.column(price * source_message * per_hour, 1.0)
        model.row([(share[operator, worker], 1.0) for worker in case.workers], 1.0, 1.0)
    for operator, message in [
        (IMAGE, case.message[f"{IMAGE}->{ANSWER}"][row[IMAGE]]),
        (SPEECH, case.message[f"{SPEECH}->{ANSWER}"]),
    ]:
        sent = {worker: [] for worker in case.workers}
        received = {worker: [] for worker in case.workers}
        for start in case.workers:
            for end in case.workers:
                price = case.link_price(case.tier[start], case.tier[end], return_traffic)
                if price is FORBIDDEN:
                    continue
                flow = model.column(price * message * per_hour, 1.0)
                sent[start].append((flow, 1.0))
                received[end].append((flow, 1.0))
        for worker in case.workers:
            model.row(sent[worker] + [(share[operator, worker], -1.0)], 0.0, 0.0)
            model.row(received[worker] + [(share[ANSWER, worker], -1.0)], 0.0, 0.0)
    for worker in case.workers:
        load = [
            (share[operator, worker], rate * case.seconds[operator, row[operator], worker])
            for operator in OPERATORS
        ]
        if not alone:
            model.row(load + [(used[worker], -1.0)], -numpy.inf, 0.0)
            continue
        hosts = []
        for operator, (column, seconds) in zip(OPERATORS, load):
            hosted = model.column(0.0, 1.0, binary=True)
            model.row([(column, seconds), (hosted, -1.0)], -numpy.inf, 0.0)
            hosts.append((hosted, 1.0))
        model.row(hosts + [(used[worker], -1.0)], -numpy.inf, 0.0)
    return model.solve()


def optimum(case, rate, accuracy, alone, return_traffic):
    """The least cost over all rows that are accurate enough, or None."""
    costs = [
        cost_of_row(case, row, rate, alone, return_traffic)
        for row in case.rows
        if row["accuracy"] >= accuracy
    ]
    return min((cost for cost in costs if cost is not None), default=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", help="the published case, JSON")
    parser.add_argument("table", help="the table to write, CSV (HiGHS itself writes to stdout)")
    parser.add_argument("--percentile", default="p75_ms")
    arguments = parser.parse_args()
    case = Case(arguments.case, arguments.percentile)
    points = [(rate, accuracy) for rate in RATES for accuracy in ACCURACIES]
    points += [(rate, 56.0) for rate in FINE_RATES]
    with open(arguments.table, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["setting", "rate_per_s", "accuracy", "dollars_per_hour"])
        for setting, alone, return_traffic in SETTINGS:
            for rate, accuracy in sorted(points):
                cost = optimum(case, rate, accuracy, alone, return_traffic)
                told = "infeasible" if cost is None else f"{cost:.6f}"
                writer.writerow([setting, rate, accuracy, told])
                file.flush()


if __name__ == "__main__":
    main()
