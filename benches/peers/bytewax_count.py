"""The job in Bytewax, as its guides write it: CSVSource, an event clock, a tumbling window, count_window, FileSink.

    python -m bytewax.run bytewax_count:flow [-r RECOVERY -s 1]
"""

import os
from datetime import datetime, timedelta, timezone

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.connectors.files import CSVSource, FileSink
from bytewax.dataflow import Dataflow

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SIZE = timedelta(seconds=60)

flow = Dataflow("count")
rows = op.input("rows", flow, CSVSource(os.environ["PEER_INPUT"], batch_size=10_000))
clock = win.EventClock(
    ts_getter=lambda row: EPOCH + timedelta(milliseconds=int(row["at"])),
    # As in the guides. Without it rows just before the end of a window are late: time goes on while they wait.
    wait_for_system_duration=timedelta(seconds=10),
)
windower = win.TumblingWindower(length=SIZE, align_to=EPOCH)
counted = win.count_window("counted", rows, clock, windower, lambda row: row["sensor"])


def line(item):
    sensor, (window, count) = item
    # Windows are numbered from `align_to`.
    return sensor, f"{sensor},{window * 60_000},{count}"


lines = op.map("line", counted.down, line)
op.output("out", lines, FileSink(os.environ["PEER_OUTPUT"]))
