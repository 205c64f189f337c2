"""A rank is killed and started again, and the others wait for it. Three ranks; rank 0 starts it, with `again` as the argument."""

import array
import os
import signal
import subprocess
import sys

import tidemill.collective as collective


def fails(kind, call, *given, **named):
    try:
        call(*given, **named)
    except kind as error:
        return error
    raise SystemExit(f"no {kind.__name__}")


def total():
    x = array.array("q", [group.rank + 1])
    return group.all_reduce(x)[0]


group = collective.init()
if sys.argv[1:] != ["again"]:
    assert total() == 6
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    buffer = group.buffer("i64", 1)
    assert fails(collective.Lost, group.barrier).rank == 1
    if group.rank == 0:
        # Nobody has started it. Rank 2 waits meanwhile.
        error = fails(collective.Refused, group.rejoin, timeout=0.3)
        assert "rank 1" in str(error), error
        again = subprocess.Popen([sys.executable, __file__, "again"], env={**os.environ, "TIDEMILL_RANK": "1"})
    assert group.rejoin(timeout=60) is group
    buffer.memory[0] = 5
    assert group.all_reduce(buffer).memory[0] == 11, "buffers stay"
else:
    assert group.all_reduce(array.array("q", [1]))[0] == 11
assert group.members == (0, 1, 2) and total() == 6 and len(group.all_gather(bytearray(1))) == 3, group
group.barrier()
if group.rank == 0:
    assert again.wait() == 0
group.close()
assert "has left the group" in str(fails(collective.Wrong, group.rejoin))
