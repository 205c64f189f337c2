#!/usr/bin/env python3
"""Measures what a run from Python costs: start, small records, tables, frames; beside a plain loop.

    PYTHONPATH=operators/python/python TIDEMILL_PROGRAM=target/debug/tidemill benches/experiments/python_figures.py

Needs NumPy and pyarrow. Each figure is the best of three.
"""

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


def best(measure):
    return min(measure() for _ in range(3))


def seconds(work):
    def measure():
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun
    return best(measure)


def main():
    small, frames = WORKFLOW % (SMALL, FILTER, "kept"), WORKFLOW % (FRAME, FRAMES, "kept")
    one = [{"n": 0, "x": 0.0, "site": "a"}]
    print(f"start and end of a run of one record: {seconds(lambda: list(tidemill.run(small, inputs={'rows': one}))) * 1e3:.0f} ms")

    count = 200_000

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

    print(f"small records, plain loop: {count / seconds(plain):,.0f} /s")
    print(f"small records, in and out as dictionaries: {count / seconds(through):,.0f} /s")
    print(f"small records, in as dictionaries, out as batches: {count / seconds(into):,.0f} /s")

    many = 5_000_000
    table = pyarrow.table({"n": numpy.arange(many), "x": numpy.arange(many) / 3, "site": pyarrow.array(["hall"] * many)})

    def tables():
        assert sum(batch.arrow().num_rows for batch in tidemill.run(small, inputs={"rows": table}).batches()) == many

    print(f"rows of pyarrow tables, in and out: {many / seconds(tables):,.0f} /s")

    frame = numpy.random.default_rng(7).integers(0, 255, (512, 683, 3), numpy.uint8)
    number = 500

    def pictures():
        found = 0
        for batch in tidemill.run(frames, inputs={"rows": ({"image": frame} for _ in range(number))}).batches():
            found += sum(picture.array.nbytes for picture in batch["image"])
        assert found == number * frame.nbytes

    def into_nothing():
        text = WORKFLOW % (FRAME, '  - {id: kept, kind: filter, input: rows, options: {where: "false"}}', "kept")
        assert list(tidemill.run(text, inputs={"rows": ({"image": frame} for _ in range(number))})) == []

    megabytes = number * frame.nbytes / 1e6
    print(f"frames of 1 MB, in: {megabytes / seconds(into_nothing):,.0f} MB/s")
    print(f"frames of 1 MB, in and out: {megabytes / seconds(pictures):,.0f} MB/s")


if __name__ == "__main__":
    main()
