"""Objects with elements that operations take beside buffers: NumPy arrays, tensors of PyTorch, and others with memory of their own."""

import array
import math
import mmap
import sys
import typing
import zlib

from ._buffer import BY_NAME, WORDS, Element, element_of, name_of
from ._errors import Wrong

Shape = typing.Tuple[int, ...]


#: Bytes of the name of a type, at most.
MOST_NAME = 24


class Moved(typing.NamedTuple):
    """The type of elements that are moved: that of the packets, and its name where the packets have another one."""

    element: Element
    type_name: str = ""


def _short(name: str) -> str:
    """A name that fits into a packet. One that does not has a sum of its letters at the end."""
    if len(name) <= MOST_NAME and all("!" <= letter <= "~" for letter in name):
        return name
    first = "".join(letter if "!" <= letter <= "~" else "_" for letter in name[:MOST_NAME - 9])
    return f"{first}#{zlib.crc32(name.encode()):08x}"


class Data:
    """An object with elements: how they are shown in shared memory, and copied."""

    shape: Shape
    item: int
    dtype: typing.Any

    def __init__(self, x: typing.Any) -> None:
        self.x = x

    @property
    def bytes(self) -> int:
        """Bytes of all its elements."""
        return math.prod(self.shape) * self.item

    def view(self, memory: mmap.mmap, offset: int, shape: Shape) -> typing.Any:
        """Returns elements of the same type in shared memory."""
        raise NotImplementedError

    def copy(self, into: typing.Any, source: typing.Any) -> None:
        """Copies elements of as many."""
        raise NotImplementedError

    def empty(self, shape: Shape) -> typing.Any:
        """Makes an object of the same kind."""
        raise NotImplementedError

    def stacked(self, count: int) -> Shape:
        """The shape of as many objects like this one."""
        return (count, *self.shape)

    def to_write(self) -> None:
        """Checks that it may be written."""

    def element(self, dtype: typing.Any = None) -> Element:
        """The type of its elements, for combining them; `dtype` is the same, or what unsigned integers and plain bytes stand for."""
        element = element_of(self.dtype if dtype is None else dtype)
        if element.bytes != self.item:
            raise Wrong(f"elements of {self.item} bytes are none of type {element.name}")
        name = name_of(self.dtype)
        if BY_NAME.get(name) != element and not self.is_plain(name):
            raise Wrong(f"elements of type {name} are none of type {element.name}: convert them; "
                        "`dtype` is for unsigned integers that are the bits of others")
        return element

    def is_plain(self, name: str) -> bool:
        """Whether its elements are bits of which `dtype` says what they mean."""
        return name in ("uint16", "uint32", "uint64")

    def moved(self, parts: int) -> typing.Tuple[Moved, int, int]:
        """The type of elements by which it is moved in equal parts, the elements of a part, and their bytes."""
        part = self.bytes // parts
        try:
            moved = Moved(self.element())
        except Wrong:
            # Others are moved, not combined: as whole words.
            moved = Moved(WORDS, _short(self.type_name()))
        length = -(-part // moved.element.bytes)
        return moved, length, length * moved.element.bytes

    def type_name(self) -> str:
        """The name of the type of its elements, which all ranks of a move have in common."""
        return name_of(self.dtype)

    def rows(self, parts: int, why: str) -> Shape:
        """The shape of one of equal parts along the first axis."""
        if not self.shape or self.shape[0] % parts:
            raise Wrong(f"{self.shape[0] if self.shape else 'no'} rows are not the same number for each of {parts} ranks{why}")
        return (self.shape[0] // parts, *self.shape[1:])


class _Array(Data):
    """A NumPy array."""

    def __init__(self, x: typing.Any) -> None:
        super().__init__(x)
        self.shape, self.item, self.dtype = x.shape, x.itemsize, x.dtype
        if x.dtype.hasobject:
            raise Wrong("an array of Python objects has no elements that others can read: convert it to one of numbers")

    def element(self, dtype: typing.Any = None) -> Element:
        if not self.dtype.isnative:
            raise Wrong(f"elements of type {self.dtype.str} have the bytes of another machine: x.astype('{self.dtype.name}') changes them")
        return super().element(dtype)

    def is_plain(self, name: str) -> bool:
        return super().is_plain(name) or (self.dtype.char == "V" and self.dtype.names is None and name.startswith("void"))

    def type_name(self) -> str:
        # Fields of a structure, and an order of bytes that is not that of the machine, are not in the name.
        if self.dtype.names is not None:
            return f"{self.dtype.name}:{self.dtype}"
        return super().type_name() if self.dtype.isnative else str(self.dtype.str)

    def view(self, memory: mmap.mmap, offset: int, shape: Shape) -> typing.Any:
        import numpy
        return numpy.ndarray(shape, self.dtype, memory, offset)

    def copy(self, into: typing.Any, source: typing.Any) -> None:
        into[...] = source

    def empty(self, shape: Shape) -> typing.Any:
        import numpy
        return numpy.empty(shape, self.dtype)

    def to_write(self) -> None:
        if not self.x.flags.writeable:
            raise Wrong("the array is read-only, and the result is written into it: pass a copy, x.copy()")


class _Tensor(Data):
    """A tensor of PyTorch on the processor."""

    def __init__(self, x: typing.Any) -> None:
        super().__init__(x.detach())
        if x.device.type != "cpu" or x.layout != sys.modules["torch"].strided:
            raise Wrong(f"a tensor on {x.device} with layout {x.layout}: operations take dense ones on the processor, x.cpu()")
        self.shape, self.item, self.dtype = tuple(x.shape), x.element_size(), x.dtype

    def view(self, memory: mmap.mmap, offset: int, shape: Shape) -> typing.Any:
        count = math.prod(shape)
        if not count:
            return self.empty(shape)
        return sys.modules["torch"].frombuffer(memory, dtype=self.dtype, count=count, offset=offset).view(shape)

    def copy(self, into: typing.Any, source: typing.Any) -> None:
        into.detach().copy_(source)

    def empty(self, shape: Shape) -> typing.Any:
        return sys.modules["torch"].empty(shape, dtype=self.dtype)


class _Plain(Data):
    """Another object whose memory can be read, such as `array.array`: a row of elements."""

    def __init__(self, x: typing.Any) -> None:
        super().__init__(x)
        try:
            memory = memoryview(x)
        except TypeError:
            raise Wrong(f"an object of type {type(x).__name__} has no memory to share: pass a Buffer, a NumPy array or a tensor") from None
        if not memory.c_contiguous:
            raise Wrong("the elements are not one after the other in memory: pass a copy")
        if len(memory.format.lstrip("@")) != 1:
            raise Wrong(f"elements of format {memory.format!r} cannot be copied: pass a NumPy array of them")
        self.memory = memory
        self.shape, self.item = (memory.nbytes // memory.itemsize,), memory.itemsize
        bits = 8 * memory.itemsize
        named = {"f": "f32", "e": "f16", "i": "i32", "q": "i64", "l": f"i{bits}", "d": "float64", "?": "bool",
                 **dict.fromkeys("bh", f"int{bits}"), **dict.fromkeys("BHILQN", f"uint{bits}")}
        self.dtype = named.get(memory.format.lstrip("@"), memory.format)

    def view(self, memory: mmap.mmap, offset: int, shape: Shape) -> typing.Any:
        return memoryview(memory)[offset:offset + shape[0] * self.item]

    def copy(self, into: typing.Any, source: typing.Any) -> None:
        # Nothing has no other format.
        if memoryview(source).nbytes:
            memoryview(into).cast("B")[:] = memoryview(source).cast("B")

    def empty(self, shape: Shape) -> typing.Any:
        data = bytes(shape[0] * self.item)
        if isinstance(self.x, array.array):
            return array.array(self.x.typecode, data)
        # Its format is one that memoryview knows, or there would be no memoryview of it.
        return bytearray(data) if isinstance(self.x, bytearray) else memoryview(bytearray(data)).cast(typing.cast(typing.Any, self.memory.format))

    def stacked(self, count: int) -> Shape:
        return (count * self.shape[0],)

    def to_write(self) -> None:
        if self.memory.readonly:
            raise Wrong("the memory is read-only, and the result is written into it: pass a copy")


def of(x: typing.Any) -> Data:
    """Returns how the elements of an object are copied. Packages that the program has not imported are not either here."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and isinstance(x, tensor):
        return _Tensor(x)
    ndarray = getattr(sys.modules.get("numpy"), "ndarray", None)
    if ndarray is not None and isinstance(x, ndarray):
        return _Array(x)
    return _Plain(x)
