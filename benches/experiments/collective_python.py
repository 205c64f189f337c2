#!/usr/bin/env python3
"""Measures `all_reduce` of programs in Python: of buffers, of arrays, and, with --torch, of tensors beside gloo.

    tidemill net serve &
    PYTHONPATH=operators/python/python benches/experiments/collective_python.py --ranks 2

Needs NumPy. Each figure is the best of five repetitions at rank 0, the mean of its calls.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

import numpy

import tidemill.collective

SIZES = [(1 << 10, 200), (16 << 20, 5)]  # bytes, calls of a repetition


def best(barrier, call, calls):
    found = []
    for _ in range(5):
        barrier()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begun) / calls)
    return min(found)


def figures(is_first, name, barrier, call_of):
    """Prints a row; `call_of` makes a call for as many elements of four bytes."""
    row = [best(barrier, call_of(size // 4), calls) for size, calls in SIZES]
    if is_first:
        print(f"{name:10}", *(f"{size:>10} B {1e6 * seconds:10.0f} us" for (size, _), seconds in zip(SIZES, row)), flush=True)


def rank(store):
    with tidemill.collective.init("figures") as group:
        def of_buffer(length):
            buffer = group.buffer("f32", length)
            return lambda: group.all_reduce(buffer)

        def of_array(length):
            array = numpy.zeros(length, "float32")
            return lambda: group.all_reduce(array)
        figures(group.rank == 0, "buffer", group.barrier, of_buffer)
        figures(group.rank == 0, "array", group.barrier, of_array)
        if store:
            of_torch(store, group)


def of_torch(store, group):
    import torch
    import torch.distributed as dist

    import tidemill.collective.torch
    torch.set_num_threads(1)
    for backend in ["tidemill", "gloo"]:
        dist.init_process_group(backend, init_method=f"file://{store}/{backend}", rank=group.rank, world_size=group.size)

        def of_tensor(length):
            tensor = torch.zeros(length)
            return lambda: dist.all_reduce(tensor)
        figures(group.rank == 0, backend, dist.barrier, of_tensor)
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--torch", action="store_true")
    given = parser.parse_args()
    if "TIDEMILL_RANK" in os.environ:
        return rank(os.environ.get("STORE"))
    with tempfile.TemporaryDirectory() as store:
        environment = {**os.environ, "TIDEMILL_SIZE": str(given.ranks), **({"STORE": store} if given.torch else {})}
        ranks = [subprocess.Popen([sys.executable, __file__], env={**environment, "TIDEMILL_RANK": str(number)}) for number in range(given.ranks)]
        if any([one.wait() for one in ranks]):
            sys.exit(1)


if __name__ == "__main__":
    main()
