"""Calls that wait, calls that do not, and calls that are wrong, with the standard library alone. Two ranks."""

import array
import asyncio
import gc
import os
import resource
import select
import sys
import threading

import tidemill.collective as collective
from tidemill.collective import _connection


def floats(*values):
    return array.array("f", values)


def wrong(why, call, *given, kind=collective.Wrong, **named):
    try:
        call(*given, **named)
    except kind as error:
        assert why in str(error) and error.reason == str(error), error
        return
    raise SystemExit(f"no error: {why}")


def descriptors():
    return len(os.listdir("/proc/self/fd"))


# A buffer takes a descriptor.
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
group = collective.init()
assert (group.size, group.members, group.epoch) == (2, (0, 1), 1), group
assert "numpy" not in sys.modules and "torch" not in sys.modules

# Objects with memory.
x = floats(1, 2, 3)
assert group.all_reduce(x) is x and x == floats(2, 4, 6)
assert group.all_reduce(memoryview(array.array("q", [group.rank])), "max")[0] == 1
data = bytearray([group.rank] * 5)
assert group.broadcast(data, 1) == bytearray([1] * 5)
assert group.all_gather(bytearray([group.rank] * 3)) == bytearray([0, 0, 0, 1, 1, 1])
assert group.all_gather(floats(group.rank)) == floats(0, 1)
assert group.all_to_all(array.array("i", [10 * group.rank, 10 * group.rank + 1])) == array.array("i", [group.rank, 10 + group.rank])
assert group.reduce_scatter(floats(1, 2, 3)) == [floats(2), floats(4, 6)][group.rank]
buffer = group.buffer("float32", 3)
buffer.memory[:] = floats(1, 2, 3)
assert group.all_reduce(buffer).memory.tolist() == [2, 4, 6] and len(buffer) == 3
group.barrier()

# A call that has not ended: the other rank has not called it.
if group.rank == 0:
    pending = group.all_reduce(floats(1), async_=True)
    assert not pending.done()
    try:
        pending.wait(timeout=0.01)
        raise SystemExit("it has ended")
    except TimeoutError:
        pass
    assert select.select([pending], [], [], 0)[0] == []
    # The other rank calls after this.
    group2 = collective.init("second", 0, 2)
    assert select.select([pending], [], [], 60)[0] == [pending] and pending.done()
    assert pending.wait() == floats(2) and pending.wait(timeout=0) == floats(2)
else:
    group2 = collective.init("second", 1, 2)
    group.all_reduce(floats(1))


# In asyncio: all at once, one of them twice, and one that is given up.
async def together():
    first = group.all_reduce(floats(1), async_=True)
    calls = [first, first, group.barrier(async_=True), group.broadcast(floats(group.rank), 1, async_=True)]
    results = await asyncio.wait_for(asyncio.gather(*calls), 60)
    assert results == [floats(2), floats(2), None, floats(1)], results
    if group.rank == 0:
        late = group.all_reduce(floats(3), async_=True)
        try:
            await asyncio.wait_for(asyncio.ensure_future(late_result(late)), 0.05)
            raise SystemExit("it has ended")
        except asyncio.TimeoutError:
            pass
        group2.barrier()
        assert await late == floats(6)
    else:
        group2.barrier()
        assert await group.all_reduce(floats(3), async_=True) == floats(6)


async def late_result(pending):
    return await pending


asyncio.run(together())

# An operation begins when its event says so.
reads, writes = os.pipe()
buffer.memory[:] = floats(0, 0, 0)
pending = group.all_reduce(buffer, after=reads, async_=True)
buffer.memory[:] = floats(5, 6, 7)
assert not pending.done()
group2.barrier()
assert not pending.done()
os.write(writes, b"x")
assert pending.wait().memory.tolist() == [10, 12, 14]
wrong("needs a Buffer", group.all_reduce, floats(1), after=reads)
os.close(reads), os.close(writes)

# One thread waits while another one calls, and each has its own answer.
results = []
calls = [group.all_reduce(array.array("i", [n]), async_=True) for n in range(50)]
threads = [threading.Thread(target=lambda n=n: results.append((n, calls[n].wait()[0]))) for n in range(50)]
for thread in threads:
    thread.start()
more = [group.broadcast(array.array("i", [n * (1 - group.rank)]))[0] for n in range(50)]
for thread in threads:
    thread.join()
assert sorted(results) == [(n, 2 * n) for n in range(50)] and more == list(range(50))


# Two threads, each with a group.
def count(own, sums):
    for n in range(200):
        sums.append(own.all_reduce(array.array("q", [n + own.rank]))[0])


one, two = [], []
thread = threading.Thread(target=count, args=(group2, two))
thread.start()
count(group, one)
thread.join()
assert one == two == [2 * n + 1 for n in range(200)]

# Calls that the program does not wait for end all the same, and leave nothing.
del calls, threads, pending, thread
group.barrier()
gc.collect()
before = descriptors()
for n in range(3000):
    group.all_reduce(buffer, "max", async_=True)
group.barrier()
gc.collect()
assert descriptors() == before, (descriptors(), before)
group.barrier()
connection = group._connection
assert len(connection._ended) <= 1 and not connection._unwanted, (connection._ended, connection._unwanted)

# Memory comes back: more buffers than a program may have at once.
for n in range(1500):
    group.buffer("i64", 1).memory[0] = n
kept = [group.buffer("f32", 10) for _ in range(1000)]
view = kept[0].memory
del kept
view[0] = 1.5
assert view[0] == 1.5, "what is shown stays"
assert descriptors() <= before + 2

# Memory that arrays were copied through is given back where a buffer needs it.
assert group._regions._kept
held = []
try:
    while True:
        held.append(group.buffer("i64", 1))
except collective.Refused:
    pass
assert len(held) > 100 and not group._regions._kept
held.pop()
assert group.all_reduce(floats(3)) == floats(6)
del held

# Operations on arrays that nobody waits for have a buffer each.
with collective.init(f"many-{group.rank}", 0, 1) as alone:
    calls = []
    try:
        while True:
            calls.append(alone.all_reduce(floats(1), async_=True))
    except collective.Refused as error:
        assert "1024 buffers" in str(error) and "wait for some operations first" in str(error), error
    assert len(calls) > 1000 and all(one.wait() == floats(1) for one in calls)
    alone.barrier()
del calls, alone

# What is wrong is found before others notice.
wrong("none of type", group.all_reduce, floats(1), dtype="bf16")
wrong("`sum`, `min` or `max`", group.all_reduce, floats(1), "mean")
wrong("of type f32 are none of type i32", group.all_reduce, floats(1), dtype="i32")
wrong("of type f32 are none of type i32", group.reduce_scatter, buffer, dtype="i32")
wrong("cannot be combined", group.all_reduce, bytearray(3))
wrong("sum", group.all_reduce, floats(1), 1)
for n in [1.0, True, "1", None, [1]]:
    wrong("length", group.buffer, "f32", n)
    wrong("root", group.broadcast, floats(1), n)
    wrong("length", group.part, n)
    if n is not None:
        wrong("rank", group.part, 3, n)
        wrong("rank", collective.init, "x", n, 2)
        wrong("size", collective.init, "x", 0, n)
        wrong("name", collective.init, n, 0, 1) if n != "1" else None
wrong("no name of a group", collective.init, "\ud800", 0, 1)
wrong("`bulk`, `normal` or `high`", collective.init, "x", 0, 2, priority=1)
for seconds in [float("nan"), "1", [], 1j]:
    wrong("number of seconds", group.barrier, deadline=seconds)
wrong("a timeout", group.barrier(async_=True).wait, timeout=float("nan"))
for descriptor in [-1, 1 << 40, 1.5, "0", True, 999_999]:
    wrong("", group.all_reduce, buffer, after=descriptor)
wrong("read-only", group.all_reduce, memoryview(floats(1)).toreadonly())
wrong("no memory to share", group.all_reduce, [1.0])
wrong("none of 0, 1", group.broadcast, floats(1), 2)
wrong("pad", group.all_to_all, floats(1))
wrong("cannot be combined", group.buffer, "float64", 1)
wrong("the most", group.buffer, "f32", 1 << 31)
wrong("number of seconds", group.barrier, deadline=-1)
wrong("another group", group2.all_reduce, buffer)
given = group.buffer("f32", 1)
given.free()
wrong("given back", group.all_reduce, given)
wrong("the first rank is 0", collective.init, "x", 2, 2)
wrong("`bulk`, `normal` or `high`", collective.init, "x", 0, 2, priority="urgent")
wrong("no name of a group", collective.init, "a/b", 0, 1, kind=collective.Refused)
own = f"this program itself still holds rank {group.rank} of the group: close it first"
wrong(own, collective.init, group.name, group.rank, 2, kind=collective.Refused)
wrong(f"another program of this host is rank {1 - group.rank}", collective.init, group.name, 1 - group.rank, 2, kind=collective.Refused)
wrong(f"rank 1 of group alone-{group.rank} has not come", collective.init, f"alone-{group.rank}", 0, 2, deadline=0.2, kind=collective.Refused)
start = "`tidemill net serve --socket /nowhere/net.sock`"
wrong(start, collective.init, "x", 0, 1, service="/nowhere/net.sock", wait=0, kind=collective.Unreachable)
wrong("also after 0.2 s", collective.init, "x", 0, 1, service="/nowhere/net.sock", wait=0.2, kind=collective.Unreachable)
wrong("number of seconds", collective.init, "x", 0, 1, wait=-1)
for name, value, why in [("TIDEMILL_RANK", "first", "no number"), ("TIDEMILL_RANK", "", "TIDEMILL_RANK (RANK")]:
    saved, os.environ[name] = os.environ[name], value
    wrong(why, collective.init)
    os.environ[name] = saved

# Elements that are only moved have the same type at all ranks.
for codes, names in [("dq", ("float64", "i64")), ("dQ", ("float64", "uint64")), ("fi", ("f32", "i32")), ("bB", ("int8", "uint8"))]:
    for move in [group2.broadcast, group2.all_gather, group2.all_to_all]:
        for name in names:
            elements = array.array(codes[group.rank], [1, 2])
            wrong(name, move, elements, kind=collective.Differs)
        group2.shrink()
    assert group2.all_gather(array.array(codes[0], [group.rank])) == array.array(codes[0], [0, 1])
assert group2.broadcast(bytearray(3), 0) is not None

# What the service finds wrong is an error of the call at all ranks.
wrong("equal parts", group.all_to_all, group.buffer("f32", 3))
assert group.all_reduce(floats(1)) == floats(2)

# A fork has no part in the group, and does not disturb it.
child = os.fork()
if child == 0:
    wrong("forked", group.barrier)
    wrong("forked", group.buffer, "f32", 1)
    del buffer, given, view
    group.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert group.all_reduce(buffer).memory.tolist() == [20, 24, 28]

# The socket is found as programs in Rust find it.
found, geteuid = _connection.usual_socket, os.geteuid
saved = {name: os.environ.pop(name, None) for name in ["TIDEMILL_NET", "XDG_RUNTIME_DIR", "TMPDIR"]}
os.geteuid = lambda: 0
assert found() == "/run/tidemill/net.sock"
os.geteuid = lambda: 7
nothing = "/nowhere/net.sock"
of_root = found() if os.path.exists("/run/tidemill/net.sock") else None
assert of_root or found() == "/tmp/tidemill-7/net.sock"
os.environ["XDG_RUNTIME_DIR"] = "/run/user/7"
assert of_root or found() == "/run/user/7/tidemill/net.sock"
os.environ["TIDEMILL_NET"] = nothing
assert found() == nothing
os.geteuid = geteuid
os.environ.update((name, value) for name, value in saved.items() if value is not None)

# A group of one, by what torchrun sets.
for name in ["TIDEMILL_GROUP", "TIDEMILL_RANK", "TIDEMILL_SIZE"]:
    del os.environ[name]
os.environ.update(RANK="0", WORLD_SIZE="1", TORCHELASTIC_RUN_ID=f"run-{group.rank}")
with collective.init(priority="high") as alone:
    assert alone.name == f"run-{group.rank}" and alone.all_reduce(floats(4)) == floats(4)
wrong("has left the group", alone.barrier)

# A thread that waits learns that another one has left.
if group.rank == 0:
    waits = group2.all_reduce(floats(1), async_=True)
    learnt = []
    thread = threading.Thread(target=lambda: (wrong("has left the group", waits.wait), learnt.append(True)))
    thread.start()
    while not group2._connection._receives:
        pass
    group2.close()
    thread.join()
    assert learnt and group2._connection._socket.fileno() == -1

# A program may leave after its last operation.
if group.rank == 0:
    group.barrier()
    group.close()
else:
    group.barrier()
