"""A group that this program is a rank of."""

import datetime
import errno
import os
import socket
import threading
import time
import typing

from . import _arrays
from ._arrays import Data, Moved
from ._buffer import NO_DESCRIPTORS, WAIT_FIRST, Buffer, Region, Regions, element_of
from ._connection import GONE, PAUSE, VERSION, WAIT, Connection, milliseconds, usual_socket, whole
from ._errors import CollectiveError, Lost, Refused, Wrong, of_failure
from ._pending import Pending

#: Seconds until all ranks must have joined, and until an operation must have ended, where nothing else is said.
DEADLINE = 300.0

T = typing.TypeVar("T")
Time = typing.Union[float, datetime.timedelta]
Joined = typing.Tuple[typing.Tuple[int, ...], int]
Operation = typing.Union[str, typing.Dict[str, typing.Dict[str, typing.Union[str, int]]]]


class HasFileno(typing.Protocol):
    """An object with a descriptor: a socket, a pipe, a file."""

    def fileno(self) -> int: ...


Descriptor = typing.Union[int, HasFileno]
NOW = typing.Literal[False]
LATER = typing.Literal[True]


def _milliseconds(given: typing.Optional[Time]) -> int:
    return milliseconds(DEADLINE if given is None else given.total_seconds() if isinstance(given, datetime.timedelta) else given)


def _number(name: str, given: typing.Optional[int], *variables: str) -> int:
    """A number that the program passes, or one of these variables of the environment."""
    if given is not None:
        return whole(name, given)
    for variable in variables:
        text = os.environ.get(variable)
        if text:
            try:
                return int(text)
            except ValueError:
                raise Wrong(f"{variable} is {text!r}, which is no number") from None
    raise Wrong(f"no {name}: pass `{name}=`, or set {variables[0]} ({variables[1]}, which torchrun sets, works too)")


def init(group: typing.Optional[str] = None, rank: typing.Optional[int] = None, size: typing.Optional[int] = None, *,
         service: typing.Union[str, "os.PathLike[str]", None] = None, wait: Time = WAIT, deadline: Time = DEADLINE,
         priority: str = "normal") -> "Group":
    """Joins a group, and waits until all its ranks have.

    Without arguments, TIDEMILL_GROUP, TIDEMILL_RANK and TIDEMILL_SIZE of the environment say which, or RANK and WORLD_SIZE, which torchrun
    sets. `service` is the socket of the transport service of this machine, where it is not the usual one; `wait` is the number of seconds
    in which it must be there. `priority` is `bulk`, `normal` or `high`: which groups have paths first.

    Raises `Unreachable` where no service answers in that time, `Refused` with the ranks that are missing after `deadline` seconds, or because
    the rank is taken.
    """
    if group is not None and not isinstance(group, str):
        raise Wrong(f"a group has a name, and {group!r} is no text")
    name = group or os.environ.get("TIDEMILL_GROUP") or os.environ.get("TORCHELASTIC_RUN_ID") or "default"
    rank = _number("rank", rank, "TIDEMILL_RANK", "RANK")
    size = _number("size", size, "TIDEMILL_SIZE", "WORLD_SIZE")
    if not 0 <= rank < size < 1 << 32:
        raise Wrong(f"rank {rank} of {size}: the first rank is 0")
    if not isinstance(priority, str) or priority not in ("bulk", "normal", "high"):
        raise Wrong(f"priority {priority!r}: it is `bulk`, `normal` or `high`")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Wrong(f"{name!r} is no name of a group: letters, digits, `-`, `_` and `.` are") from None
    asked = _Asked(usual_socket() if service is None else service, name, rank, size, priority, _milliseconds(wait))
    return Group(asked, *asked.join(_milliseconds(deadline)))


class _Asked(typing.NamedTuple):
    """What a program joins."""

    service: typing.Union[str, "os.PathLike[str]"]
    name: str
    rank: int
    size: int
    priority: str
    #: Milliseconds in which the service must be there.
    wait: int

    def join(self, deadline: int) -> typing.Tuple[Connection, Joined]:
        """Joins, within so many milliseconds."""
        begun = time.monotonic()
        connection = Connection(self.service, min(self.wait, deadline) / 1000)
        connection.holds = (self.name, self.rank)
        left = max(deadline - int((time.monotonic() - begun) * 1000), 0)
        try:
            connection.send("join", {"version": VERSION, "group": self.name, "rank": self.rank, "size": self.size, "deadline_ms": left,
                                     "priority": self.priority})
            return connection, connection.joined(left / 1000)
        except Refused as error:
            is_own = error.reason.startswith("another program") and connection.holds_too()
            connection.close()
            if is_own:
                raise Refused(f"this program itself still holds rank {self.rank} of the group: close it first") from None
            raise
        except BaseException:
            connection.close()
            raise


class Group:
    """The ranks of a group, which call the same operations in the same order. `init` makes one.

    Operations work with a `Buffer` in place, or with a NumPy array, a tensor or another object with memory, which is copied into shared memory
    and back. `all_reduce` and `broadcast` write their result into the object; `reduce_scatter`, `all_gather` and `all_to_all` return a new
    one. With `async_=True` an operation returns a `Pending` at once.

    `deadline` is the time until an operation must have ended, 5 minutes where nothing is said. `after` is a descriptor that becomes readable
    when an operation may begin: an eventfd, a pipe or a Unix socket. It needs a `Buffer`, whose elements are not copied before.

    Several threads may use one group. All ranks must call in the same order, so that usually one thread calls. A group cannot be used after a
    fork in the child; the parent is not disturbed.
    """

    def __init__(self, asked: _Asked, connection: Connection, joined: Joined) -> None:
        self.name = asked.name
        self.rank = asked.rank
        self.size = asked.size
        self._asked = asked
        self._closed = False
        self._connection = connection
        self._regions = Regions(connection)
        self._shrinks = threading.Lock()
        self._joined = joined

    @property
    def members(self) -> typing.Tuple[int, ...]:
        """Ranks that take part now, ascending. Parts count by the position here."""
        return self._joined[0]

    @property
    def epoch(self) -> int:
        """The number of the strategy with which this formation of the group began."""
        return self._joined[1]

    def part(self, length: int, rank: typing.Optional[int] = None) -> slice:
        """Returns which of as many elements are the part of a rank, this one where none is named."""
        length, count, position = whole("length", length), len(self.members), self._position(rank)
        return slice(position * length // count, (position + 1) * length // count)

    def _position(self, rank: typing.Optional[int] = None) -> int:
        wanted = self.rank if rank is None else whole("rank", rank)
        try:
            return self.members.index(wanted)
        except ValueError:
            raise Wrong(f"rank {wanted} is none of {', '.join(map(str, self.members))}") from None

    def buffer(self, dtype: typing.Any, length: int) -> Buffer:
        """Gets memory for elements, all zero, which operations need no copy of.

        `dtype` is a name (`f32`, `float32`, `bf16`), or a type of NumPy or PyTorch.
        """
        element, length = element_of(dtype), whole("length", length)
        if length < 0:
            raise Wrong(f"a buffer of {length} elements")
        return Buffer(self._regions.make(length * element.bytes), element, length)

    @typing.overload
    def all_reduce(self, x: T, op: str = ..., *, dtype: typing.Any = ..., deadline: typing.Optional[Time] = ...,
                   after: typing.Optional[Descriptor] = ..., async_: NOW = ...) -> T: ...

    @typing.overload
    def all_reduce(self, x: T, op: str = ..., *, dtype: typing.Any = ..., deadline: typing.Optional[Time] = ...,
                   after: typing.Optional[Descriptor] = ..., async_: LATER) -> Pending[T]: ...

    def all_reduce(self, x: typing.Any, op: str = "sum", *, dtype: typing.Any = None, deadline: typing.Optional[Time] = None,
                   after: typing.Optional[Descriptor] = None, async_: bool = False) -> typing.Any:
        """Combines the elements of all ranks, and gives the result to all. It is written into `x`.

        `op` is `sum`, `min` or `max`. `dtype="bf16"` says that elements of `uint16` are floats.
        """
        operation: Operation = {"all_reduce": {"reduction": _reduction(op)}}
        if isinstance(x, Buffer):
            return self._in_place(operation, x, deadline, after, async_, dtype)
        data = self._data(x, after)
        data.to_write()
        element = data.element(dtype)
        region = self._regions.take(data.bytes)
        shared = data.view(region.memory, 0, data.shape)
        data.copy(shared, data.x)

        def result() -> typing.Any:
            data.copy(data.x, shared)
            return x
        return self._start(operation, Moved(element), data.bytes // element.bytes, region, result, deadline, async_)

    @typing.overload
    def broadcast(self, x: T, root: int = ..., *, deadline: typing.Optional[Time] = ..., after: typing.Optional[Descriptor] = ...,
                  async_: NOW = ...) -> T: ...

    @typing.overload
    def broadcast(self, x: T, root: int = ..., *, deadline: typing.Optional[Time] = ..., after: typing.Optional[Descriptor] = ...,
                  async_: LATER) -> Pending[T]: ...

    def broadcast(self, x: typing.Any, root: int = 0, *, deadline: typing.Optional[Time] = None,
                  after: typing.Optional[Descriptor] = None, async_: bool = False) -> typing.Any:
        """Gives the elements of the rank `root` to all. They are written into `x`. Arrays and tensors may have any type."""
        root = whole("root", root)
        self._position(root)
        operation: Operation = {"broadcast": {"root": root}}
        if isinstance(x, Buffer):
            return self._in_place(operation, x, deadline, after, async_)
        data = self._data(x, after)
        moved, length, size = data.moved(1)
        is_root = root == self.rank
        if not is_root:
            data.to_write()
        region = self._regions.take(size)
        shared = data.view(region.memory, 0, data.shape)
        if is_root:
            data.copy(shared, data.x)

        def result() -> typing.Any:
            if not is_root:
                data.copy(data.x, shared)
            return x
        return self._start(operation, moved, length, region, result, deadline, async_)

    @typing.overload
    def reduce_scatter(self, x: T, op: str = ..., *, dtype: typing.Any = ..., deadline: typing.Optional[Time] = ...,
                       after: typing.Optional[Descriptor] = ..., async_: NOW = ...) -> T: ...

    @typing.overload
    def reduce_scatter(self, x: T, op: str = ..., *, dtype: typing.Any = ..., deadline: typing.Optional[Time] = ...,
                       after: typing.Optional[Descriptor] = ..., async_: LATER) -> Pending[T]: ...

    def reduce_scatter(self, x: typing.Any, op: str = "sum", *, dtype: typing.Any = None, deadline: typing.Optional[Time] = None,
                       after: typing.Optional[Descriptor] = None, async_: bool = False) -> typing.Any:
        """Combines the elements of all ranks, and gives each its part.

        The result is a new object with the part of this rank: `x[group.part(len(x))]`, combined. Several dimensions are divided along the
        first one, which must be divisible by the number of members. In a `Buffer`, the part is in place and the rest undefined.
        """
        operation: Operation = {"reduce_scatter": {"reduction": _reduction(op)}}
        if isinstance(x, Buffer):
            return self._in_place(operation, x, deadline, after, async_, dtype)
        data = self._data(x, after)
        element = data.element(dtype)
        length = data.bytes // element.bytes
        part = self.part(length)
        shape: typing.Tuple[int, ...] = (part.stop - part.start,)
        if len(data.shape) != 1:
            shape = data.rows(len(self.members), ": flatten it, or pad it")
        region = self._regions.take(data.bytes)
        data.copy(data.view(region.memory, 0, data.shape), data.x)

        def result() -> typing.Any:
            own = data.empty(shape)
            data.copy(own, data.view(region.memory, part.start * element.bytes, shape))
            return own
        return self._start(operation, Moved(element), length, region, result, deadline, async_)

    @typing.overload
    def all_gather(self, x: T, *, deadline: typing.Optional[Time] = ..., after: typing.Optional[Descriptor] = ...,
                   async_: NOW = ...) -> T: ...

    @typing.overload
    def all_gather(self, x: T, *, deadline: typing.Optional[Time] = ..., after: typing.Optional[Descriptor] = ...,
                   async_: LATER) -> Pending[T]: ...

    def all_gather(self, x: typing.Any, *, deadline: typing.Optional[Time] = None, after: typing.Optional[Descriptor] = None,
                   async_: bool = False) -> typing.Any:
        """Gives the elements of each rank to all.

        `x` has the same shape at all ranks. The result is a new object with one more dimension, the members. A `Buffer` has room for all
        parts; this rank writes its own one, `group.part(len(buffer))`, and gets the others. Arrays and tensors may have any type.
        """
        if isinstance(x, Buffer):
            return self._in_place("all_gather", x, deadline, after, async_)
        data = self._data(x, after)
        count = len(self.members)
        moved, length, size = data.moved(1)
        region = self._regions.take(count * size)
        data.copy(data.view(region.memory, self._position() * size, data.shape), data.x)

        def result() -> typing.Any:
            every = data.empty(data.stacked(count))
            if size == data.bytes:
                data.copy(every, data.view(region.memory, 0, data.stacked(count)))
            else:
                self._parts(data, every, region, size, data.shape, count)
            return every
        return self._start("all_gather", moved, count * length, region, result, deadline, async_)

    @typing.overload
    def all_to_all(self, x: T, *, deadline: typing.Optional[Time] = ..., after: typing.Optional[Descriptor] = ...,
                   async_: NOW = ...) -> T: ...

    @typing.overload
    def all_to_all(self, x: T, *, deadline: typing.Optional[Time] = ..., after: typing.Optional[Descriptor] = ...,
                   async_: LATER) -> Pending[T]: ...

    def all_to_all(self, x: typing.Any, *, deadline: typing.Optional[Time] = None, after: typing.Optional[Descriptor] = None,
                   async_: bool = False) -> typing.Any:
        """Exchanges parts: part q of the member at position p becomes part p of the member at position q.

        The first dimension is divided into as many equal parts as there are members. The result is a new object of the shape of `x`; a
        `Buffer` is changed in place. Arrays and tensors may have any type.
        """
        if isinstance(x, Buffer):
            return self._in_place("all_to_all", x, deadline, after, async_)
        data = self._data(x, after)
        count = len(self.members)
        shape = data.rows(count, ": pad it")
        moved, length, size = data.moved(count)
        region = self._regions.take(count * size)
        rows = shape[0]
        for part in range(count):
            data.copy(data.view(region.memory, part * size, shape), data.x[part * rows:(part + 1) * rows])

        def result() -> typing.Any:
            exchanged = data.empty(data.shape)
            for part in range(count):
                data.copy(_rows(exchanged, part * rows, rows), data.view(region.memory, part * size, shape))
            return exchanged
        return self._start("all_to_all", moved, count * length, region, result, deadline, async_)

    @typing.overload
    def barrier(self, *, deadline: typing.Optional[Time] = ..., async_: NOW = ...) -> None: ...

    @typing.overload
    def barrier(self, *, deadline: typing.Optional[Time] = ..., async_: LATER) -> Pending[None]: ...

    def barrier(self, *, deadline: typing.Optional[Time] = None, async_: bool = False) -> typing.Any:
        """Waits until all ranks have called it."""
        region = self._regions.take(1)
        return self._start({"all_reduce": {"reduction": "max"}}, Moved(element_of("i32")), 1, region, lambda: None, deadline, async_)

    def shrink(self, deadline: Time = DEADLINE) -> None:
        """Continues with the ranks that are left, after one was lost: waits until all of them call this.

        Ranks keep their numbers; `members` says who takes part. A program that joined in the place of a lost rank takes part, too.
        """
        wait = _milliseconds(deadline)
        with self._shrinks:
            self._continues(wait, False)

    def rejoin(self, timeout: Time = DEADLINE) -> "Group":
        """Continues with all ranks, after some were lost: waits until each of them calls this, or joins. Returns this group.

        Where the service was upgraded or has crashed, it joins the service again; buffers and pending operations of before are of no use then,
        and operations refuse them with `Wrong`. Raises the error of the last attempt in this time, as `init`.
        """
        wait = _milliseconds(timeout)
        begun = time.monotonic()

        def left() -> int:
            return max(wait - int((time.monotonic() - begun) * 1000), 0)
        with self._shrinks:
            while True:
                try:
                    self._again(left)
                    return self
                except Wrong:
                    # It was closed, or is of the parent of this process.
                    raise
                except CollectiveError:
                    # Another host may be gone meanwhile, or the service not back.
                    if left() <= PAUSE * 1000:
                        raise
                time.sleep(PAUSE)

    def _again(self, left: typing.Callable[[], int]) -> None:
        """Continues with all ranks, or joins again, within the milliseconds that are left."""
        before = self._connection
        try:
            return self._continues(left(), True)
        except Lost:
            before.close(Lost(GONE))
        connection, joined = self._asked.join(left())
        self._connection, self._regions, self._joined = connection, Regions(connection), joined
        if self._closed:
            # By another thread, meanwhile.
            self.close()
            raise Wrong("this program has left the group")

    def _continues(self, wait: int, is_whole: bool) -> None:
        self._connection.forget_joined()
        self._connection.send("shrink", {"deadline_ms": wait, "whole": is_whole})
        self._joined = self._connection.joined(wait / 1000)

    def close(self) -> None:
        """Leaves the group. Buffers stay readable; the other ranks get `Lost` for operations that they call later."""
        self._closed = True
        self._connection.close()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size}, members {', '.join(map(str, self.members))})"

    @staticmethod
    def _data(x: typing.Any, after: typing.Optional[Descriptor]) -> Data:
        if after is not None:
            raise Wrong("`after` needs a Buffer: elements of other objects are copied at the call, before it is readable")
        return _arrays.of(x)

    def _in_place(self, operation: Operation, buffer: Buffer, deadline: typing.Optional[Time], after: typing.Optional[Descriptor],
                  async_: bool, dtype: typing.Any = None) -> typing.Any:
        if dtype is not None and element_of(dtype) != buffer._element:
            raise Wrong(f"elements of type {buffer.dtype} are none of type {element_of(dtype).name}: a buffer has the type it was made with")
        if buffer._region._connection is not self._connection:
            raise Wrong("the buffer is of another group, or of a service that is gone: get one from this group")
        if not buffer._region.number:
            raise Wrong("the buffer was given back by `free`")
        descriptor = None if after is None else _descriptor(after)
        return self._start(operation, Moved(buffer._element), len(buffer), buffer._region, lambda: buffer, deadline, async_, descriptor, False)

    def _start(self, operation: Operation, moved: Moved, length: int, region: Region, result: typing.Callable[[], T],
               deadline: typing.Optional[Time], async_: bool, after: typing.Optional[int] = None, keeps: bool = True
               ) -> typing.Union[T, Pending[T]]:
        """Calls an operation with the first elements of a region, which is kept for the next one after its end."""
        # Not that of the group, which may join again in another thread.
        connection = region._connection

        def finish(is_well: bool) -> T:
            value = result() if is_well else None
            if keeps:
                self._regions.put(region)
            return typing.cast(T, value)
        body = {"operation": operation, "element": moved.element.name, "type_name": moved.type_name, "length": length,
                "buffer": region.number, "offset": 0, "deadline_ms": _milliseconds(deadline), "after": after is not None, "ended": async_}
        descriptors = [] if after is None else [after]
        if async_:
            try:
                readable, theirs = socket.socketpair()
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                raise Refused(f"{NO_DESCRIPTORS}; {WAIT_FIRST}") from None
            with theirs:
                try:
                    number = connection.call(body, [*descriptors, theirs.fileno()])
                except BaseException:
                    readable.close()
                    raise
            return Pending(connection, number, readable, finish)
        number = connection.call(body, descriptors)
        try:
            failure = connection.ended(number)
        finally:
            # Where the program stops to wait, the operation still has the region, which is given back and not kept.
            connection.forget(number)
        value = finish(failure is None)
        if failure is not None:
            raise of_failure(failure)
        return value

    @staticmethod
    def _parts(data: Data, every: typing.Any, region: Region, size: int, shape: typing.Tuple[int, ...], count: int) -> None:
        """Copies parts that do not fill whole words."""
        for part in range(count):
            shared = data.view(region.memory, part * size, shape)
            data.copy(every[part] if len(data.stacked(1)) > len(shape) else _rows(every, part * shape[0], shape[0]), shared)


def _rows(x: typing.Any, first: int, count: int) -> typing.Any:
    """Rows of an object, in its memory."""
    return (memoryview(x) if not hasattr(x, "reshape") else x)[first:first + count]


def _descriptor(after: typing.Any) -> int:
    """The number of a descriptor, which another process can be given."""
    try:
        number = whole("descriptor", after.fileno() if hasattr(after, "fileno") else after)
    except (OSError, ValueError) as error:
        raise Wrong(f"`after` is no descriptor: {error}") from None
    if not 0 <= number < 1 << 31:
        raise Wrong(f"`after` is {number}, which is no descriptor")
    return number


def _reduction(op: str) -> str:
    if not isinstance(op, str) or op not in ("sum", "min", "max"):
        raise Wrong(f"op {op!r}: it is `sum`, `min` or `max`; for a mean, divide the sum by len(group.members)")
    return op
