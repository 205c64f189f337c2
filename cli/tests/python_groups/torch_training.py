"""PyTorch: the backend of torch.distributed, DistributedDataParallel, and gradients of a loop of one's own. The argument is a file for the store."""

import os
import sys

import torch
import torch.distributed as dist

import tidemill.collective as collective
import tidemill.collective.torch as parallel

torch.set_num_threads(1)
rank, size = int(os.environ["TIDEMILL_RANK"]), int(os.environ["TIDEMILL_SIZE"])


def fails(kind, call, *given, **named):
    try:
        call(*given, **named)
    except kind as error:
        return str(error)
    raise SystemExit(f"no {kind.__name__}")


def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.ReLU(), torch.nn.Linear(30, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1))


def batch(step, ranks):
    random = torch.Generator().manual_seed(step)
    inputs = torch.randn(size * 4, 8, generator=random)
    mine = inputs[ranks[0] * 4:(ranks[-1] + 1) * 4]
    return mine, mine.sum(1, keepdim=True)


def trained(net, synchronize, ranks):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(15):
        inputs, targets = batch(step, ranks)
        optimizer.zero_grad()
        ((net(inputs) - targets) ** 2).mean().backward()
        synchronize()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


torch.manual_seed(0)
start = model()
expected = trained(start, lambda: None, range(size))

# A loop of one's own. Ranks begin differently, and with a group that has another name than those of the backend.
with collective.init() as group:
    torch.manual_seed(rank)
    own = model()
    if rank == 0:
        torch.manual_seed(0)
        own = model()
    parallel.broadcast_parameters(own, group)
    found = trained(own, lambda: parallel.all_reduce_gradients(own, group, bucket_bytes=2000), [rank])
    assert torch.allclose(found, expected, atol=1e-4), (found - expected).abs().max()
    every = group.all_gather(found)
    assert all(torch.equal(one, found) for one in every), "the same bytes at all ranks"

    # Types, and a parameter that this rank has not used.
    for dtype in [torch.float16, torch.bfloat16, torch.float32]:
        parameters = [torch.nn.Parameter(torch.zeros(n, dtype=dtype)) for n in (3, 5)]
        parameters[0].grad = torch.full((3,), float(rank), dtype=dtype)
        if rank == 0:
            parameters[1].grad = torch.full((5,), 2.0 * size, dtype=dtype)
        parallel.all_reduce_gradients(parameters, group)
        assert torch.equal(parameters[0].grad, torch.full((3,), (size - 1) / 2, dtype=dtype)), parameters[0].grad
        assert torch.equal(parameters[1].grad, torch.full((5,), 2.0, dtype=dtype)), parameters[1].grad
        parallel.all_reduce_gradients(parameters, group, mean=False)
        assert torch.equal(parameters[1].grad, torch.full((5,), 2.0 * size, dtype=dtype)), parameters[1].grad
        x = torch.arange(6, dtype=dtype).view(2, 3)
        assert torch.equal(group.all_reduce(x.clone().t()), size * x.t())
        buffer = group.buffer(dtype, 4)
        buffer.tensor[:] = torch.arange(4, dtype=dtype)
        assert torch.equal(group.all_reduce(buffer).tensor, size * torch.arange(4, dtype=dtype))
    assert "float32" in fails(collective.Wrong, group.all_reduce, torch.zeros(2, dtype=torch.float64))
    assert "x.cpu()" in fails(collective.Wrong, group.all_reduce, torch.zeros(2, device="meta"))
    assert len(group.buffer("f32", 0).tensor) == 0 and group.all_reduce(torch.zeros(0)).numel() == 0

# The backend.
dist.init_process_group("tidemill", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=size)
assert dist.get_backend() == "tidemill"
x = torch.full((3,), float(rank))
dist.all_reduce(x)
assert x.tolist() == [size * (size - 1) / 2] * 3
dist.all_reduce(x, op=dist.ReduceOp.AVG)
assert x.tolist() == [size * (size - 1) / 2] * 3
x = torch.tensor([rank])
work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
assert work.get_future().wait()[0].item() == size - 1 == x.item() and work.is_completed() and work.wait()
for dtype in [torch.uint8, torch.bool, torch.float64, torch.int64]:
    own = torch.tensor([rank % 2, 1, 0]).to(dtype)
    every = [torch.zeros(3, dtype=dtype) for _ in range(size)]
    dist.all_gather(every, own)
    assert [one.tolist() for one in every] == [torch.tensor([n % 2, 1, 0]).to(dtype).tolist() for n in range(size)]
    dist.broadcast(own, 1)
    assert own.tolist() == every[1].tolist()
together = torch.zeros(size * 2, 3)
gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
gather(together, torch.full((2, 3), float(rank)))
assert together[:, 0].tolist() == [float(n // 2) for n in range(size * 2)]
part = torch.zeros(2)
scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
scatter(part, torch.arange(2.0 * size))
assert part.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]
dist.reduce_scatter(part, list(torch.arange(2.0 * size).split(2)), op=dist.ReduceOp.AVG)
assert part.tolist() == [2.0 * rank, 2.0 * rank + 1]
exchanged = torch.zeros(size)
dist.all_to_all_single(exchanged, torch.arange(float(size)) + 10 * rank)
assert exchanged.tolist() == [10.0 * n + rank for n in range(size)]
parts = [torch.zeros(1) for _ in range(size)]
dist.all_to_all(parts, list((torch.arange(float(size)) + 10 * rank).split(1)))
assert [one.item() for one in parts] == exchanged.tolist()
x = torch.full((2,), float(rank + 1))
dist.reduce(x, 1)
assert x[0].item() == (size * (size + 1) / 2 if rank == 1 else rank + 1)
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": n} for n in range(size)]
objects = [None] * size if rank == 1 else None
dist.gather_object("x" * rank, objects, dst=1)
assert rank != 1 or objects == ["x" * n for n in range(size)]
x = torch.zeros(2)
dist.scatter(x, [torch.full((2,), float(n)) for n in range(size)] if rank == 0 else None)
assert x.tolist() == [float(rank)] * 2
dist.barrier()
assert "SUM, AVG, MIN and MAX" in fails(collective.Wrong, dist.all_reduce, x, op=dist.ReduceOp.PRODUCT)
assert "average of integers" in fails(collective.Wrong, dist.all_reduce, torch.tensor([1]), op=dist.ReduceOp.AVG)
assert "gloo" in fails(NotImplementedError, dist.send, x, (rank + 1) % size)
few = dist.new_group([0, 1])
if rank < 2:
    x = torch.ones(1)
    dist.all_reduce(x, group=few)
    assert x.item() == 2

torch.manual_seed(0 if rank == 0 else rank)
net = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.002)
found = trained(net, lambda: None, [rank])
assert torch.allclose(found, expected, atol=1e-4), (found - expected).abs().max()
every = [torch.zeros_like(found) for _ in range(size)]
dist.all_gather(every, found)
assert all(torch.equal(one, found) for one in every)

# A rank that ends is an error of `backward`.
dist.barrier()
if rank == 2:
    os._exit(0)
try:
    for step in range(100):
        net(batch(0, [rank])[0]).mean().backward()
    raise SystemExit("no error")
except (collective.Lost, RuntimeError) as error:
    # PyTorch makes another error of one that comes while it computes.
    assert f"rank 2 on host {os.environ['TEST_HOST']}" in str(error), error
try:
    dist.all_reduce(torch.ones(1))
    raise SystemExit("no error")
except collective.Lost as error:
    assert (error.rank, error.host) == (2, os.environ["TEST_HOST"]), (error.rank, error.host)
if rank < 2:
    x = torch.ones(1)
    dist.all_reduce(x, group=few)
    assert x.item() == 2, "the smaller group has all its ranks"
dist.destroy_process_group()
