#!/usr/bin/env python3
"""Measures what a run from Python costs: start, small records, tables, frames; beside a plain loop.

    PYTHONPATH=operators/python/python TIDEMILL_PROGRAM=target/debug/tidemill benches/experiments/python_figures.py

Needs NumPy and pyarrow.
"""

import resource
import time

import numpy
import pyarrow

import tidemill

WORKFLOW = """
version: 1
name: figures
sources:
  - {id: rows, kind: python, options: {output: {%s}}}
operators:
%s
sinks:
  - {id: out, kind: python, input: %s}
"""
SMALL, FRAME = "n: int64, x: float64, site: text", "image: image"
FILTER = '  - {id: kept, kind: filter, input: rows, options: {where: "x >= 0.0"}}'
FRAMES = '  - {id: kept, kind: filter, input: rows, options: {where: "true"}}'


def spent():
    """Seconds so far: by the clock, and of processors in this process and those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in used)


def figure(name, amount, unit, work):
    """Prints amounts a second, of the best of three by the clock, and of the best by processor time."""
    found = []
    for _ in range(3):
        before = spent()
        work()
        found.append([after - start for start, after in zip(before, spent())])
    clock, processor = (min(column) for column in zip(*found))
    print(f"{name}: {amount / clock:,.0f} {unit}/s; {amount / processor:,.0f} {unit} a second of processor time", flush=True)


def main():
    small, frames = WORKFLOW % (SMALL, FILTER, "kept"), WORKFLOW % (FRAME, FRAMES, "kept")
    one = [{"n": 0, "x": 0.0, "site": "a"}]
    figure("runs of one record, from start to end", 1, "runs", lambda: list(tidemill.run(small, inputs={"rows": one})))

    count = 100_000

    def records():
        for n in range(count):
            yield {"n": n, "x": n / 3, "site": "hall"}

    def plain():
        kept = []
        for record in records():
            if record["x"] >= 0.0:
                kept.append(record)
        assert len(kept) == count

    def through():
        assert sum(1 for _ in tidemill.run(small, inputs={"rows": records()})) == count

    def into():
        assert sum(batch.rows for batch in tidemill.run(small, inputs={"rows": records()}).batches()) == count

    figure("small records, plain loop", count, "records", plain)
    figure("small records, in and out as dictionaries", count, "records", through)
    figure("small records, in as dictionaries, out as batches", count, "records", into)

    many = 2_000_000
    table = pyarrow.table({"n": numpy.arange(many), "x": numpy.arange(many) / 3, "site": pyarrow.array(["hall"] * many)})

    def tables():
        assert sum(batch.arrow().num_rows for batch in tidemill.run(small, inputs={"rows": table}).batches()) == many

    figure("rows of pyarrow tables, in and out", many, "rows", tables)

    frame = numpy.random.default_rng(7).integers(0, 255, (512, 683, 3), numpy.uint8)
    number = 200

    def pictures():
        found = 0
        for batch in tidemill.run(frames, inputs={"rows": ({"image": frame} for _ in range(number))}).batches():
            found += sum(picture.array.nbytes for picture in batch["image"])
        assert found == number * frame.nbytes

    def into_nothing():
        text = WORKFLOW % (FRAME, '  - {id: kept, kind: filter, input: rows, options: {where: "false"}}', "kept")
        assert list(tidemill.run(text, inputs={"rows": ({"image": frame} for _ in range(number))})) == []

    megabytes = number * frame.nbytes / 1e6
    figure("frames of 1 MB, in", megabytes, "MB", into_nothing)
    figure("frames of 1 MB, in and out", megabytes, "MB", pictures)


if __name__ == "__main__":
    main()
