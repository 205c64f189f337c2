"""All operations and types give what NumPy computes. Each rank makes the values of all ranks, and compares bit for bit."""

import itertools

import numpy

import tidemill.collective as collective
from tidemill.collective import _arrays

OPS = {"sum": numpy.add, "min": numpy.minimum, "max": numpy.maximum}
LENGTHS = [0, 1, 7, 1000, 50_003]


def to_bf16(values):
    """Small integers are exact in 16 bits, so that nothing is rounded."""
    return (values.astype("float32").view("uint32") >> 16).astype("uint16")


def of_bf16(values):
    return (values.astype("uint32") << 16).view("float32")


def values(kind, length, rank, seed):
    random = numpy.random.default_rng([length, rank, seed])
    if kind == "i32":
        return random.integers(-2**31, 2**31, length, dtype="int32")
    if kind == "i64":
        return random.integers(-2**63, 2**63, length, dtype="int64")
    small = random.integers(-20, 20, length)
    return to_bf16(small) if kind == "bf16" else small.astype({"f32": "float32", "f16": "float16"}[kind])


def combined(kind, op, every):
    if kind == "bf16":
        return to_bf16(OPS[op].reduce([of_bf16(one) for one in every]))
    return OPS[op].reduce(every, dtype=every[0].dtype)


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape, (found.dtype, found.shape, expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes(), (found, expected)


def in_buffers(group, kind, length, seed):
    every = [values(kind, length, rank, seed) for rank in range(group.size)]
    own, me = every[group.rank], group.part(length)
    buffer = group.buffer(kind, length)
    for op in OPS:
        buffer.array[:] = own
        assert group.all_reduce(buffer, op) is buffer
        same(buffer.array, combined(kind, op, every))
        buffer.array[:] = own
        group.reduce_scatter(buffer, op)
        same(buffer.array[me], combined(kind, op, every)[me])
    root = seed % group.size
    buffer.array[:] = own
    group.broadcast(buffer, root)
    same(buffer.array, every[root])
    buffer.array[:] = 0
    buffer.array[me] = own[me]
    group.all_gather(buffer)
    same(buffer.array, numpy.concatenate([one[group.part(length, rank)] for rank, one in enumerate(every)]))
    buffer.free()


def in_arrays(group, kind, length, seed):
    dtype = "bf16" if kind == "bf16" else None
    every = [values(kind, length, rank, seed) for rank in range(group.size)]
    own = every[group.rank]
    for op in OPS:
        x = own.copy()
        assert group.all_reduce(x, op, dtype=dtype) is x
        same(x, combined(kind, op, every))
        same(group.reduce_scatter(own, op, dtype=dtype), combined(kind, op, every)[group.part(length)])
    x = own.copy()
    group.broadcast(x, 1)
    same(x, every[1])
    same(group.all_gather(own), numpy.stack(every))


def moved(group, dtype, shape):
    """Any type is moved, also where its bytes are no whole words."""
    every = [numpy.random.default_rng(rank).integers(0, 2, shape).astype(dtype) for rank in range(group.size)]
    own = every[group.rank]
    x = own.copy()
    group.broadcast(x, group.size - 1)
    same(x, every[-1])
    same(group.all_gather(own), numpy.stack(every).astype(dtype))
    rows = shape[0] // group.size
    same(group.all_to_all(own), numpy.concatenate([one[group.rank * rows:(group.rank + 1) * rows] for one in every]).astype(dtype))


with collective.init() as group:
    seeds = itertools.count()
    for kind in ["f32", "f16", "bf16", "i32", "i64"]:
        for length in LENGTHS:
            in_buffers(group, kind, length, next(seeds))
            in_arrays(group, kind, length, next(seeds))
        buffer = group.buffer(kind, 6 * group.size)
        every = [values(kind, 6 * group.size, rank, 1) for rank in range(group.size)]
        buffer.array[:] = every[group.rank]
        group.all_to_all(buffer)
        same(buffer.array, numpy.concatenate([one[group.rank * 6:group.rank * 6 + 6] for one in every]))
    for dtype in ["uint8", "bool", "float64", "complex128", "float32", "S3", "datetime64[s]", ">f4"]:
        for columns in [(), (3,), (5, 1)]:
            moved(group, dtype, (group.size, *columns))
            moved(group, dtype, (3 * group.size, *columns))

    # Shapes, strides, and numbers without a shape.
    x = numpy.arange(24.0, dtype="float32").reshape(4, 6)
    group.all_reduce(x[::2, 1:4])
    expected = numpy.arange(24.0, dtype="float32").reshape(4, 6)
    expected[::2, 1:4] *= group.size
    same(x, expected)
    x = numpy.float32(group.rank) + numpy.zeros((), "float32")
    x = numpy.array(x)
    same(group.all_reduce(x), numpy.array(sum(range(group.size)), "float32"))
    x = numpy.arange(group.size * 6, dtype="int32").reshape(group.size, 2, 3)
    same(group.reduce_scatter(x), x[group.rank:group.rank + 1] * group.size)
    same(group.reduce_scatter(x.transpose(0, 2, 1)), x.transpose(0, 2, 1)[group.rank:group.rank + 1] * numpy.int32(group.size))

    # Many at once, whose results come in any order of waiting.
    arrays = [numpy.full(n + 1, group.rank, "int64") for n in range(100)]
    pending = [group.all_reduce(x, async_=True) for x in arrays]
    for n in [57, *range(99, -1, -1)]:
        assert pending[n].wait() is arrays[n]
        same(arrays[n], numpy.full(n + 1, sum(range(group.size)), "int64"))

    # The memory that arrays are copied through is used again, and never by two.
    assert len(group._regions._kept) <= 8
    x, y = numpy.zeros(100, "int32"), numpy.ones(100, "int32")
    first, second = group.all_reduce(x, async_=True), group.all_reduce(y, async_=True)
    second.wait(), first.wait()
    assert not x.any() and (y == group.size).all()

    for wrong, why in [(numpy.zeros(3), "float32"), (numpy.zeros(3, "uint16"), "bf16"), (numpy.zeros(3, ">f4"), "astype('float32')")]:
        try:
            group.all_reduce(wrong)
            raise SystemExit(f"no error: {why}")
        except collective.Wrong as error:
            assert why in str(error), error
    own = numpy.ones(group.size, "uint16").view("V2")
    same(group.all_reduce(own.copy(), dtype="f16").view("uint16"), numpy.full(group.size, group.size, "uint16"))
    for kind, dtype in [("f4", "i32"), ("i4", "f32"), ("f2", "bf16"), ("i2", "bf16"), ("c8", "i64"), ("f8", "i64"), ("M8[s]", "i64"),
                        ("S2", "f16"), ([("a", "u2")], "f16"), ("u2", "f32")]:
        for call in [group.all_reduce, group.reduce_scatter]:
            try:
                call(numpy.zeros(group.size, kind), dtype=dtype)
                raise SystemExit(f"no error: {kind} as {dtype}")
            except collective.Wrong as error:
                assert "none of type" in str(error), error
    same(group.all_reduce(numpy.ones(1, "f4"), dtype=numpy.float32), numpy.full(1, group.size, "f4"))

    # Integers of NumPy are as good as others; floats and truths are not.
    assert len(group.buffer("f32", numpy.int64(3))) == 3 and group.part(numpy.int32(8), numpy.uint8(0)).start == 0
    same(group.broadcast(numpy.full(1, group.rank), numpy.int16(1)), numpy.ones(1, int))
    same(group.all_reduce(numpy.ones(1, "i4"), deadline=numpy.float32(60)), numpy.full(1, group.size, "i4"))
    group.barrier(deadline=numpy.int64(60))
    with collective.init(f"alone-{group.rank}", numpy.int64(0), numpy.uint32(1)) as alone:
        alone.barrier()
    for n in [numpy.float64(1), numpy.bool_(True)]:
        for call, given in [(group.buffer, ("f32", n)), (group.broadcast, (numpy.zeros(1), n)), (collective.init, ("x", n, 2)),
                            (collective.init, ("x", 0, n))]:
            try:
                call(*given)
                raise SystemExit(f"no error: {n!r}")
            except collective.Wrong as error:
                assert "is no integer" in str(error), error

    for wrong, call, why in [(numpy.array([{}]), group.broadcast, "Python objects"), (numpy.zeros((group.size + 1, 2), "f4"), group.reduce_scatter, "flatten"),
                             (numpy.zeros(group.size + 1), group.all_to_all, "pad"), (_arrays, group.all_gather, "NumPy array")]:
        try:
            call(wrong)
            raise SystemExit(f"no error: {why}")
        except collective.Wrong as error:
            assert why in str(error), error
    fixed = numpy.zeros(3, "float32")
    fixed.flags.writeable = False
    try:
        group.all_reduce(fixed)
        raise SystemExit("no error: it is read-only")
    except collective.Wrong as error:
        assert "x.copy()" in str(error), error
    # Nothing of that disturbed the group.
    same(group.all_reduce(numpy.ones(1, "float32")), numpy.full(1, group.size, "float32"))
