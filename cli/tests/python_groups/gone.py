"""The service is killed: a program that waits for it, and one that calls, get the same error."""

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
print("lost", flush=True)
