"""The backend `tidemill` of `torch.distributed`: a process group whose operations are those of a group."""
# PyTorch calls one of several signatures that its methods are declared with.
# mypy: disable-error-code="override,assignment"

import datetime
import functools
import os
import queue
import threading
import typing
import uuid

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

from ._errors import Wrong
from ._group import Group, init
from ._pending import Pending

Tensors = typing.List[Tensor]
Then = typing.Callable[[typing.Any], typing.Any]


class _Work(dist.Work):  # type: ignore[misc,unused-ignore]
    """Operations that have been called, as `torch.distributed` waits for them."""

    def __init__(self, group: "TidemillProcessGroup", calls: typing.List[typing.Tuple[Pending[typing.Any], Then]], outputs: Tensors) -> None:
        super().__init__()
        self._group = group
        self._calls = calls
        self._outputs = outputs
        self._lock = threading.Lock()
        self._next = 0
        self._future: typing.Any = None

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        with self._lock:
            while self._next < len(self._calls):
                pending, then = self._calls[self._next]
                then(pending.wait(timeout.total_seconds() if timeout > datetime.timedelta(0) else None))
                self._next += 1
        return True

    def is_completed(self) -> bool:
        return all(pending.done() for pending, _ in self._calls)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> typing.Optional[BaseException]:
        if self.is_completed():
            try:
                self.wait()
            except Exception as error:
                return error
        return None

    def result(self) -> Tensors:
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> typing.Any:
        """A future with the tensors of the result. DistributedDataParallel waits for it, and not for the work."""
        with self._lock:
            if self._future is not None:
                return self._future
            ended: typing.Any = torch.futures.Future()

            def outputs(_: typing.Any) -> Tensors:
                self.wait()
                return self._outputs
            # What a callback raises is an error for those that wait in C++; `set_exception` would be a value for them.
            self._future = ended.then(outputs)
        self._group._fulfil(ended)
        return self._future


class TidemillProcessGroup(dist.ProcessGroup):  # type: ignore[misc,unused-ignore]
    """A group of Tidemill as a process group of PyTorch. Reductions are sum, minimum, maximum and, of floats, average."""

    def __init__(self, group: Group, timeout: datetime.timedelta) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg,unused-ignore]
        self.group = group
        self._timeout = timeout
        self._futures: "queue.SimpleQueue[typing.Any]" = queue.SimpleQueue()
        self._thread: typing.Optional[threading.Thread] = None
        self._name = group.name

    # What PyTorch asks

    def getBackendName(self) -> str:
        return "tidemill"

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: typing.Any) -> None:
        self._name = name
        super()._set_group_name(name)

    def shutdown(self) -> None:
        if self._thread is not None:
            self._futures.put(None)
        self.group.close()

    abort = shutdown

    def _fulfil(self, ended: typing.Any) -> None:
        """Lets a thread set a future: it runs what waits for the operation."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._set_futures, name="tidemill-futures", daemon=True)
            self._thread.start()
        self._futures.put(ended)

    def _set_futures(self) -> None:
        while True:
            ended = self._futures.get()
            if ended is None:
                return
            ended.set_result(None)

    def _deadline(self, opts: typing.Any) -> datetime.timedelta:
        timeout = getattr(opts, "timeout", None)
        return timeout if timeout is not None and timeout > datetime.timedelta(0) else self._timeout

    def _work(self, pending: Pending[typing.Any], outputs: Tensors, then: Then = lambda _: None) -> _Work:
        return _Work(self, [(pending, then)], outputs)

    # Reductions

    def allreduce(self, tensors: Tensors, opts: typing.Any = None) -> _Work:
        reduction, divides = _reduction(opts)
        calls: typing.List[typing.Tuple[Pending[typing.Any], Then]] = []
        for tensor in tensors:
            divisor = self._divisor(divides, tensor)
            pending = self.group.all_reduce(tensor, reduction, deadline=self._deadline(opts), async_=True)
            calls.append((pending, functools.partial(_divide, divisor)))
        return _Work(self, calls, tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: typing.Any = None) -> _Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: typing.Any) -> _Work:
        reduction, divides = _reduction(opts)
        tensor, = tensors
        divisor = self._divisor(divides, tensor)

        def write(sums: Tensor) -> None:
            if opts.rootRank == self.rank():
                tensor.copy_(_divide(divisor, sums))
        return self._work(self.group.all_reduce(tensor.detach().clone(), reduction, deadline=self._deadline(opts), async_=True), tensors, write)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: typing.Any = None) -> _Work:
        reduction, divides = _reduction(opts)
        divisor = self._divisor(divides, input)

        def write(part: Tensor) -> None:
            output.copy_(_divide(divisor, part).view(output.shape))
        if input.numel() != output.numel() * self.size():
            raise Wrong(f"{input.numel()} elements are not {output.numel()} for each of {self.size()} ranks")
        return self._work(self.group.reduce_scatter(input.reshape(-1), reduction, deadline=self._deadline(opts), async_=True), [output], write)

    def reduce_scatter(self, outputs: Tensors, inputs: typing.List[Tensors], opts: typing.Any = None) -> _Work:
        return self._reduce_scatter_base(outputs[0], torch.stack(inputs[0]), opts)

    def _divisor(self, divides: bool, tensor: Tensor) -> int:
        if divides and not tensor.is_floating_point():
            raise Wrong("the average of integers is none: sum them, and divide")
        return self.size() if divides else 1

    # Moves

    def broadcast(self, tensors: Tensors, opts: typing.Any) -> _Work:
        tensor, = tensors
        return self._work(self.group.broadcast(tensor, opts.rootRank, deadline=self._deadline(opts), async_=True), tensors)

    def allgather(self, outputs: typing.List[Tensors], inputs: Tensors, opts: typing.Any = None) -> _Work:
        every, = outputs

        def write(parts: Tensor) -> None:
            for output, part in zip(every, parts):
                output.copy_(part.view(output.shape))
        return self._work(self.group.all_gather(inputs[0], deadline=self._deadline(opts), async_=True), every, write)

    def _allgather_base(self, output: Tensor, input: Tensor, opts: typing.Any = None) -> _Work:
        pending = self.group.all_gather(input, deadline=self._deadline(opts), async_=True)
        return self._work(pending, [output], lambda parts: output.copy_(parts.view(output.shape)))

    def gather(self, outputs: typing.List[Tensors], inputs: Tensors, opts: typing.Any) -> _Work:
        if opts.rootRank == self.rank():
            return self.allgather(outputs, inputs, opts)
        return self._work(self.group.all_gather(inputs[0], deadline=self._deadline(opts), async_=True), [])

    def scatter(self, outputs: Tensors, inputs: typing.List[Tensors], opts: typing.Any) -> _Work:
        output, = outputs
        every = torch.stack(inputs[0]) if opts.rootRank == self.rank() else output.new_empty((self.size(), *output.shape))
        pending = self.group.broadcast(every, opts.rootRank, deadline=self._deadline(opts), async_=True)
        return self._work(pending, outputs, lambda parts: output.copy_(parts[self.rank()]))

    def alltoall_base(self, output: Tensor, input: Tensor, output_splits: typing.List[int], input_splits: typing.List[int],
                      opts: typing.Any = None) -> _Work:
        if len({*output_splits, *input_splits}) > 1:
            raise Wrong("parts of different sizes are not exchanged: pad them")
        pending = self.group.all_to_all(input, deadline=self._deadline(opts), async_=True)
        return self._work(pending, [output], lambda parts: output.copy_(parts.view(output.shape)))

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: typing.Any = None) -> _Work:
        if len({tensor.shape for tensor in [*outputs, *inputs]}) > 1:
            raise Wrong("parts of different sizes are not exchanged: pad them")

        def write(parts: Tensor) -> None:
            for output, part in zip(outputs, parts):
                output.copy_(part)
        return self._work(self.group.all_to_all(torch.stack(inputs), deadline=self._deadline(opts), async_=True), outputs, write)

    def barrier(self, opts: typing.Any = None) -> _Work:
        return self._work(self.group.barrier(deadline=self._deadline(opts), async_=True), [])

    # Newer names of the same
    reduce_scatter_single = _reduce_scatter_base
    all_gather_single = _allgather_base
    all_to_all_single = alltoall_base

    def send(self, tensors: Tensors, dst: int, tag: int) -> _Work:
        raise NotImplementedError("the backend tidemill has no messages between two ranks: use another one for them, such as gloo")

    def recv(self, tensors: Tensors, src: int, tag: int) -> _Work:
        raise NotImplementedError("the backend tidemill has no messages between two ranks: use another one for them, such as gloo")

    recv_anysource = recv


def _divide(divisor: int, sums: Tensor) -> Tensor:
    return sums if divisor == 1 else sums.div_(divisor)


def _reduction(opts: typing.Any) -> typing.Tuple[str, bool]:
    """The reduction of a group for one of PyTorch, and whether its result is divided by the number of ranks."""
    wanted = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
    for op, name, divides in ((dist.ReduceOp.SUM, "sum", False), (dist.ReduceOp.AVG, "sum", True), (dist.ReduceOp.MIN, "min", False),
                              (dist.ReduceOp.MAX, "max", False)):
        if wanted == op:
            return name, divides
    raise Wrong(f"{wanted} is none of the reductions SUM, AVG, MIN and MAX")


def _make(store: typing.Any, rank: int, size: int, timeout: datetime.timedelta) -> TidemillProcessGroup:
    """Joins a group of a name that the first rank chooses: a program makes several groups, one after the other or at once."""
    if rank == 0:
        store.set("tidemill", f"{os.environ.get('TIDEMILL_GROUP') or 'torch'}-{uuid.uuid4().hex[:12]}")
    name = store.get("tidemill").decode()
    return TidemillProcessGroup(init(name, rank, size, deadline=timeout), timeout)


def register() -> None:
    """Makes the backend known to PyTorch, where it was built with `torch.distributed`."""
    if dist.is_available() and "TIDEMILL" not in dist.Backend._plugins:
        dist.Backend.register_backend("tidemill", _make, devices=["cpu"])
