"""Groups for PyTorch: gradients of data-parallel training, and the backend `tidemill` of `torch.distributed`.

With a training loop of one's own::

    import tidemill.collective.torch as parallel

    with tidemill.collective.init("training") as group:
        parallel.broadcast_parameters(model, group)
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            parallel.all_reduce_gradients(model, group)
            optimizer.step()

Or with `torch.distributed`, for instance under torchrun: importing this module registers the backend::

    import tidemill.collective.torch
    torch.distributed.init_process_group("tidemill")
    model = torch.nn.parallel.DistributedDataParallel(model)

Tensors are on the processor.
"""

import collections
import typing

import torch  # type: ignore[import-not-found,unused-ignore]

from . import _process_group
from ._arrays import of
from ._buffer import Buffer, Region
from ._group import Group
from ._pending import Pending

__all__ = ["all_reduce_gradients", "broadcast_parameters"]

#: Bytes of gradients that are summed by one operation.
BUCKET = 25 << 20
#: Operations that are called before the first one has ended: while one is on its way, the next one is copied.
AT_ONCE = 4

#: Shared memory, the operation that sums it, and its parts beside the gradients they belong to.
Started = typing.Tuple[Region, Pending[Buffer], typing.List[typing.Tuple["torch.Tensor", "torch.Tensor"]]]
Parameters = typing.Union["torch.nn.Module", typing.Iterable["torch.Tensor"]]


def broadcast_parameters(model: "torch.nn.Module", group: Group, root: int = 0) -> None:
    """Gives the parameters and the buffers of one rank's model to all: training starts alike everywhere."""
    started: typing.Deque[Pending[typing.Any]] = collections.deque()
    for tensor in [*model.parameters(), *model.buffers()]:
        started.append(group.broadcast(tensor, root, async_=True))
        if len(started) == AT_ONCE:
            started.popleft().wait()
    for pending in started:
        pending.wait()


def all_reduce_gradients(model: Parameters, group: Group, *, mean: bool = True, bucket_bytes: int = BUCKET) -> None:
    """Sums the gradients of all ranks and divides them by the number of ranks, after `backward` and before the optimizer.

    All parameters that need gradients take part, in their order, which is the same at all ranks. One without a gradient, since the batch
    of this rank did not use it, counts as zero and has one afterwards. `mean=False` leaves the sum. Gradients are put together into
    operations of `bucket_bytes`; while one is summed, the next one is copied.
    """
    parameters = [parameter for parameter in (model.parameters() if isinstance(model, torch.nn.Module) else model) if parameter.requires_grad]
    started: typing.Deque[Started] = collections.deque()
    for bucket in _buckets(parameters, bucket_bytes):
        started.append(_start(bucket, group, mean))
        if len(started) == AT_ONCE:
            _finish(started.popleft(), group)
    for one in started:
        _finish(one, group)


def _buckets(parameters: typing.List["torch.Tensor"], most: int) -> typing.Iterator[typing.List["torch.Tensor"]]:
    """Divides gradients into lists of one type and of as many bytes, in the same manner at all ranks."""
    bucket: typing.List[torch.Tensor] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad.detach()
        more = gradient.numel() * gradient.element_size()
        if bucket and (size + more > most or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += more
    if bucket:
        yield bucket


def _start(bucket: typing.List["torch.Tensor"], group: Group, mean: bool) -> Started:
    data = [of(gradient) for gradient in bucket]
    element = data[0].element()
    region = group._regions.take(sum(one.bytes for one in data))
    copies, offset = [], 0
    for one in data:
        shared = one.view(region.memory, offset, one.shape)
        offset += one.bytes
        shared.copy_(one.x)
        if mean:
            # Before the sum, which may have no room in 16 bits.
            shared.div_(len(group.members))
        copies.append((one.x, shared))
    return region, group.all_reduce(Buffer(region, element, offset // element.bytes), async_=True), copies


def _finish(started: Started, group: Group) -> None:
    region, pending, copies = started
    pending.wait()
    for gradient, shared in copies:
        gradient.copy_(shared)
    group._regions.put(region)


_process_group.register()
