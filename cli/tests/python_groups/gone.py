"""The service is killed: a program that waits for it, and one that calls, get the same error. Then it is started again."""

import array

import tidemill.collective as collective

group = collective.init("gone", 0, 1)
x = array.array("f", [1])
group.all_reduce(x)
buffer = group.buffer("f32", 10)
print("joined", flush=True)
input()
for _ in range(2):
    try:
        while True:
            group.all_reduce(x)
    except collective.Lost as error:
        assert error.rank is None and "join the group again" in str(error), error
try:
    group.shrink()
    raise SystemExit("no error")
except collective.Lost:
    pass
buffer.memory[9] = 2.0
try:
    group.rejoin(timeout=0.2)
    raise SystemExit("no error")
except collective.Unreachable:
    pass
print("lost", flush=True)
group.rejoin(timeout=60)
x[0] = 3
assert group.all_reduce(x)[0] == 3 and group.members == (0,)
try:
    group.all_reduce(buffer)
    raise SystemExit("no error")
except collective.Wrong as error:
    assert "service that is gone" in str(error), error
assert group.all_reduce(group.buffer("f32", 10)).memory[9] == 0 and buffer.memory[9] == 2
print("again", flush=True)
