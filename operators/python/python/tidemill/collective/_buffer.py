"""Memory that a rank shares with the service of its host, and types of elements."""

import errno
import fcntl
import mmap
import os
import threading
import typing

from ._connection import Body, Connection
from ._errors import CollectiveError, Lost, Refused, Wrong

if typing.TYPE_CHECKING:
    import numpy
    import torch  # type: ignore[import-not-found,unused-ignore]

#: Sizes of regions are multiples of this, in bytes.
GRANULE = 4096
#: Bytes of a buffer, at most.
MOST_BYTES = 1 << 32
#: Regions that are kept for the next arrays, at most.
MOST_KEPT = 8
#: Why there is no more memory.
NO_DESCRIPTORS = "this process has no descriptors left, of which each buffer and each pending operation takes one: `ulimit -n` raises the number"
#: What helps where operations on arrays find no more memory.
WAIT_FIRST = "wait for some operations first: each one on an array has a buffer until its `wait`"
#: Seals without which a mapping could kill its process: nothing grows, shrinks, or gets other seals.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Element(typing.NamedTuple):
    """A type of elements: its name, its bytes, and its names in `memoryview`, NumPy and PyTorch."""

    name: str
    bytes: int
    format: str
    numpy: str
    torch: str


ELEMENTS = [Element("f32", 4, "f", "float32", "float32"), Element("f16", 2, "e", "float16", "float16"),
            Element("bf16", 2, "H", "uint16", "bfloat16"), Element("i32", 4, "i", "int32", "int32"), Element("i64", 8, "q", "int64", "int64")]
BY_NAME = {name: element for element in ELEMENTS for name in (element.name, element.torch)}
WORDS = BY_NAME["i64"]


def name_of(dtype: typing.Any) -> str:
    """Returns the name of a type as NumPy and PyTorch have it in common."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).rpartition(".")[2]


def element_of(dtype: typing.Any) -> Element:
    """Returns the type of elements that a name, a type of NumPy or one of PyTorch stands for."""
    element = BY_NAME.get(name_of(dtype))
    if element is None:
        known = ", ".join("bfloat16 (bf16)" if element.name == "bf16" else element.torch for element in ELEMENTS)
        raise Wrong(f"elements of type {name_of(dtype)} cannot be combined: convert them to one of {known}, "
                    "such as by `x.astype('float32')` of NumPy or `x.float()` of PyTorch")
    return element


class Region:
    """Memory that the service has made and this process has mapped. The service has it back when this is gone; views of it stay valid."""

    def __init__(self, connection: Connection, number: int, size: int) -> None:
        self.size = size
        connection.send("buffer", {"id": number, "bytes": size})
        kind, body, descriptors = connection.answer(lambda kind, body: kind in ("buffer", "no_buffer") and body["id"] == number)
        if kind == "no_buffer":
            raise Refused(body["reason"])
        self._connection, self.number = connection, number
        if len(descriptors) != 1:
            self.free()
            raise Refused(NO_DESCRIPTORS)
        try:
            sealed = fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & SEALS == SEALS
            if not sealed or os.fstat(descriptors[0]).st_size != size:
                raise Lost("the transport service shares memory that may shrink")
            self.memory = mmap.mmap(descriptors[0], size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            self.free()
            raise Refused(NO_DESCRIPTORS if error.errno == errno.EMFILE else f"no memory for a buffer: {error.strerror}") from None
        finally:
            os.close(descriptors[0])

    def free(self) -> None:
        """Gives the memory back."""
        number, self.number = self.number, 0
        if number:
            self._connection.free(number)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            self.free()


class Regions:
    """The regions of a group. Those that arrays were copied through are kept for the next ones."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._kept: typing.List[Region] = []
        self._made = 0

    def make(self, size: int) -> Region:
        """Gets a region of at least as many bytes."""
        if size > MOST_BYTES:
            raise Wrong(f"a buffer of {size} bytes, {MOST_BYTES} are the most: call for parts of it")
        size = -(-max(size, 1) // GRANULE) * GRANULE
        with self._lock:
            self._made += 1
            number = self._made
        try:
            return Region(self._connection, number, size)
        except Refused:
            with self._lock:
                kept, self._kept = self._kept, []
                self._made += 1
                number = self._made
            if not kept:
                raise
        # The memory of those that are kept may be enough.
        for region in kept:
            region.free()
        return Region(self._connection, number, size)

    def take(self, size: int) -> Region:
        """Takes the smallest kept region of at least as many bytes, or gets one."""
        with self._lock:
            fitting = [region for region in self._kept if region.size >= size]
            if fitting:
                best = min(fitting, key=lambda region: region.size)
                self._kept.remove(best)
                return best
        try:
            # Sizes of small arrays vary; those of large ones repeat.
            return self.make(size if size > 1 << 20 else 1 << (size - 1).bit_length() if size > GRANULE else GRANULE)
        except Refused as error:
            raise Refused(f"{error.reason}; {WAIT_FIRST}") from None

    def put(self, region: Region) -> None:
        """Keeps a region, unless there are many larger ones, or the service it is of is gone."""
        if region._connection is not self._connection:
            return
        with self._lock:
            self._kept.append(region)
            if len(self._kept) > MOST_KEPT:
                self._kept.remove(min(self._kept, key=lambda region: region.size))


class Buffer:
    """Elements that all operations work with in place, without a copy: `Group.buffer` makes one.

    Only one thread should use a range at a time, and none while an operation works with it: it would see some of the bytes.
    """

    def __init__(self, region: Region, element: Element, length: int) -> None:
        self._region = region
        self._element = element
        self._length = length

    @property
    def dtype(self) -> str:
        """The type of the elements: `f32`, `f16`, `bf16`, `i32` or `i64`."""
        return self._element.name

    def __len__(self) -> int:
        return self._length

    @property
    def memory(self) -> "memoryview":
        """The elements as a memoryview; those of type bf16 as integers of 16 bits."""
        return memoryview(self._region.memory)[:self._length * self._element.bytes].cast(self._element.format)  # type: ignore[call-overload,no-any-return,unused-ignore]

    @property
    def array(self) -> "numpy.ndarray[typing.Any, typing.Any]":
        """The elements as a NumPy array of the shared memory; those of type bf16 as `uint16`."""
        import numpy
        return numpy.frombuffer(self._region.memory, dtype=self._element.numpy, count=self._length)

    @property
    def tensor(self) -> "torch.Tensor":
        """The elements as a tensor of PyTorch in the shared memory."""
        import torch
        dtype = getattr(torch, self._element.torch)
        if not self._length:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._region.memory, dtype=dtype, count=self._length)

    def free(self) -> None:
        """Gives the memory back to the service, which the end of the object does too. Arrays and tensors of it stay valid."""
        self._region.free()

    def __repr__(self) -> str:
        return f"Buffer({self.dtype}, {self._length})"
