"""Logistic regression over several ranks: each computes the gradient of its share of the rows, and all sum them.

    python3 logistic.py --ranks 4       starts the ranks, and compares their result with that of a single process

Started by something else, such as torchrun or a script for each machine, a rank reads TIDEMILL_RANK and TIDEMILL_SIZE.
"""

import argparse
import os
import subprocess
import sys

import numpy

import tidemill.collective

ROWS, COLUMNS, STEPS, RATE = 8192, 20, 200, 0.5


def rows():
    """Makes the same rows and labels at each rank; a program with real data would read its share."""
    random = numpy.random.default_rng(7)
    inputs = random.normal(size=(ROWS, COLUMNS))
    truth = random.normal(size=COLUMNS)
    labels = random.random(ROWS) < 1 / (1 + numpy.exp(-inputs @ truth))
    return inputs, labels


def fit(inputs, labels, sum_up, says):
    """Descends along the gradient. `sum_up` adds a vector up over all ranks."""
    weights = numpy.zeros(COLUMNS)
    for step in range(STEPS + 1):
        chance = 1 / (1 + numpy.exp(-inputs @ weights))
        loss = -numpy.log(numpy.where(labels, chance, 1 - chance)).sum()
        # The gradient and the loss travel together.
        sums = sum_up(numpy.append(inputs.T @ (chance - labels), loss).astype("float32")) / ROWS
        if says and step % 50 == 0:
            print(f"step {step:3}: loss {sums[-1]:.4f}", flush=True)
        weights -= RATE * sums[:-1]
    return weights


def rank():
    with tidemill.collective.init("logistic") as group:
        inputs, labels = rows()
        share = group.part(ROWS)
        weights = fit(inputs[share], labels[share], group.all_reduce, says=group.rank == 0)
        every = group.all_gather(weights)
        if (every != weights).any():
            sys.exit("the ranks have different weights")
        if group.rank == 0:
            alone = fit(inputs, labels, lambda sums: sums, says=False)
            print(f"{group.size} ranks have the same weights; a single process has them within {abs(weights - alone).max():.1e}")
            if not numpy.allclose(weights, alone, atol=1e-4):
                sys.exit("a single process has others")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, help="start as many ranks on this machine")
    count = parser.parse_args().ranks
    if count is None:
        return rank()
    environment = {**os.environ, "TIDEMILL_SIZE": str(count)}
    ranks = [subprocess.Popen([sys.executable, __file__], env={**environment, "TIDEMILL_RANK": str(number)}) for number in range(count)]
    if any([one.wait() for one in ranks]):
        sys.exit(1)


if __name__ == "__main__":
    main()
