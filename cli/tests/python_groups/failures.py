"""Ranks that end, call late or call something else. Three ranks; the first argument is a file for the number of a process."""

import array
import os
import signal
import sys
import time

import tidemill.collective as collective


def ints(*values):
    return array.array("q", values)


def fails(kind, call, *given, **named):
    try:
        call(*given, **named)
    except kind as error:
        return error
    raise SystemExit(f"no {kind.__name__}")


host = os.environ["TEST_HOST"]
group = collective.init()
side = collective.init(group.name + "-side")

# Rank 2 calls something else.
error = fails(collective.Differs, group.all_reduce, ints(1, 2) if group.rank == 2 else ints(1))
assert "of 2 i64" in str(error) and "of 1 i64" in str(error) and error.host == host, error
error = fails(collective.Differs, group.barrier)
group.shrink()
assert group.members == (0, 1, 2) and group.all_reduce(ints(1)) == ints(3)

# Rank 1 does not call.
if group.rank == 1:
    group.all_reduce(ints(1))
    side.barrier()
    assert fails(collective.Late, group.barrier).rank == 1
else:
    pending = group.all_reduce(ints(1), deadline=60, async_=True)
    assert pending.wait() == ints(3)
    # Rank 2 has called when the time of rank 0 begins.
    with collective.init(group.name + "-pair", group.rank // 2, 2) as pair:
        if group.rank == 2:
            pending = group.all_reduce(ints(1), deadline=60, async_=True)
        pair.barrier()
        late = fails(collective.Late, group.all_reduce, ints(1), deadline=0.2) if group.rank == 0 else fails(collective.Late, pending.wait)
    assert late.rank == 1 and late.host == host and "has not called it" in str(late), (late, late.rank, late.host)
    side.barrier()
group.shrink()
assert group.all_reduce(ints(group.rank)) == ints(3)

# Rank 1 is killed, while a process that it has forked lives.
file = sys.argv[1]
waits = group.all_reduce(ints(7), async_=True) if group.rank != 1 else None
if group.rank == 1:
    child = os.fork()
    if child == 0:
        for standard in range(3):
            os.close(standard)
        signal.pause()
    with open(file + ".part", "w") as number:
        number.write(str(child))
    os.rename(file + ".part", file)
    os.kill(os.getpid(), signal.SIGKILL)
begun = time.monotonic()
error = fails(collective.Lost, waits.wait)
assert (error.rank, error.host) == (1, host) and f"rank 1 on host {host}" in error.reason, (error, error.rank, error.host)
print(f"lost after {time.monotonic() - begun:.3f} s")
assert fails(collective.Lost, waits.wait).rank == 1, "it fails again"
assert waits.done()
assert fails(collective.Lost, group.all_gather, ints(1)).rank == 1
if group.rank == 0:
    child = int(open(file).read())
    os.kill(child, 0)  # It still lives.
    os.kill(child, signal.SIGKILL)

# The others continue.
kept = group.buffer("i64", 2)
group.shrink(deadline=60)
assert group.members == (0, 2) and group.size == 3 and group.epoch > 1, group
assert group.all_reduce(ints(group.rank + 1)) == ints(4)
assert group.all_gather(ints(group.rank)) == ints(0, 2)
assert group.part(4) == slice(0, 2) if group.rank == 0 else slice(2, 4)
kept.memory[:] = ints(group.rank, group.rank)
assert group.broadcast(kept, 2).memory.tolist() == [2, 2], "buffers stay"
assert "none of 0, 2" in str(fails(collective.Wrong, group.broadcast, ints(1), 1))
group.barrier()
