"""The job in Pathway, as its guides write it: csv.read, windowby with a tumbling window, csv.write.

    python pathway_count.py          the file is all there is (`mode="static"`): the fastest way
    python pathway_count.py STATE    the file is a stream, each window is written once when it has closed, and the persistence
                                     layer keeps what a restart needs
"""

import os
import sys

import pathway as pw


class Row(pw.Schema):
    sensor: str
    at: int


state = sys.argv[1] if len(sys.argv) > 1 else None
source = os.environ["PEER_INPUT"]
if state:
    rows = pw.io.csv.read(source, schema=Row, mode="streaming", name="rows")
    behavior = pw.temporal.exactly_once_behavior()
else:
    rows = pw.io.csv.read(source, schema=Row, mode="static")
    behavior = None
counted = rows.windowby(
    rows.at, window=pw.temporal.tumbling(duration=60_000), instance=rows.sensor, behavior=behavior
).reduce(sensor=pw.this._pw_instance, start=pw.this._pw_window_start, n=pw.reducers.count())
pw.io.csv.write(counted, os.environ["PEER_OUTPUT"])
if state:
    backend = pw.persistence.Backend.filesystem(state)
    pw.run(
        persistence_config=pw.persistence.Config(backend, snapshot_interval_ms=1000),
        monitoring_level=pw.MonitoringLevel.NONE,
    )
else:
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
