"""Columns and records as a step sees them: views of shared memory, without a copy of the data."""

import struct
import typing
from collections.abc import Mapping, Sequence

from ._types import TensorType

if typing.TYPE_CHECKING:
    import numpy
    import pyarrow

Values = typing.List[typing.Any]


class Lease:
    """The memory of one call. Views that are left are released at its end, so that nobody reads what comes later there."""

    def __init__(self, mapped: typing.Any = None, start: int = 0) -> None:
        self.mapped, self.start = mapped, start
        self.views: typing.List[memoryview] = []
        self.memory = memoryview(b"" if mapped is None else mapped)

    def view(self, offset: int, length: int) -> memoryview:
        return self.keep(self.memory[offset - self.start:offset - self.start + length])

    def keep(self, view: memoryview) -> memoryview:
        self.views.append(view)
        return view

    def end(self) -> bool:
        """Releases the views and unmaps the memory; returns whether an array of the user's still shows some of it."""
        views, self.views = [self.memory, *self.views], []
        while views:
            try:
                views.pop().release()
            except BufferError:
                pass  # an array holds it
        try:
            if self.mapped is not None:
                self.mapped.close()
        except BufferError:
            return True  # also arrays of a copy of the view, as NumPy makes, hold it
        return False


#: The first bytes of pictures, other than those of WebP, and the names of their formats.
FORMATS = ((b"P6", "ppm"), (b"\xff\xd8\xff", "jpeg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"II*\0", "tiff"), (b"MM\0*", "tiff"),
           (b"BM", "bmp"), (b"GIF87a", "gif"), (b"GIF89a", "gif"))


class Image:
    """A picture: JPEG, PNG, WebP, TIFF, BMP, GIF, or raw (binary PPM), as the frames of videos are."""

    __slots__ = ("data", "_header")

    def __init__(self, data: typing.Any) -> None:
        self.data = data
        self._header: typing.Optional[typing.Tuple[int, int, int]] = None

    @classmethod
    def of(cls, array: typing.Any) -> "Image":
        """Makes a raw picture of a NumPy array of uint8: height x width x 3, or height x width."""
        return cls(b"".join(bytes(piece) for piece in raw_pieces(array)))

    @property
    def format(self) -> str:
        """By the first bytes: jpeg, png, webp, tiff, bmp, gif, ppm (raw), or unknown."""
        start = bytes(self.data[:12])
        if start[:4] == b"RIFF" and start[8:] == b"WEBP":
            return "webp"
        return next((name for first, name in FORMATS if start.startswith(first)), "unknown")

    def header(self) -> typing.Tuple[int, int, int]:
        """Returns width, height and the start of the pixels of a raw picture."""
        if self._header is None:
            self._header = raw_header(self.data)
        return self._header

    @property
    def width(self) -> int:
        return self.header()[0] if self.format == "ppm" else int(self.array.shape[1])

    @property
    def height(self) -> int:
        return self.header()[1] if self.format == "ppm" else int(self.array.shape[0])

    @property
    def pixels(self) -> memoryview:
        """The bytes of a raw picture, red, green and blue by turns, without a copy."""
        width, height, start = self.header()
        return memoryview(self.data)[start:start + width * height * 3]

    @property
    def array(self) -> "numpy.ndarray[typing.Any, typing.Any]":
        """The picture as a NumPy array, height x width x 3. That of a raw picture shows the shared memory: copy it to change it."""
        import numpy
        if self.format == "ppm":
            width, height, start = self.header()
            flat = numpy.frombuffer(self.data, numpy.uint8, width * height * 3, start)
            return flat.reshape(height, width, 3)
        try:
            from PIL import Image as Pillow  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise ImportError(f"this picture is compressed ({self.format}): install Pillow to decode it (pip install pillow), "
                              "or put a source or step before that sends raw pictures") from None
        import io
        return numpy.asarray(Pillow.open(io.BytesIO(self.data)).convert("RGB"))

    def __array__(self, dtype: typing.Any = None, copy: typing.Any = None) -> typing.Any:
        array = self.array
        return array if dtype is None else array.astype(dtype)

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    def __repr__(self) -> str:
        return f"<tidemill.Image {self.format}, {len(self.data)} bytes>"


def raw_header(data: typing.Any) -> typing.Tuple[int, int, int]:
    """Reads the header of a binary PPM: width, height, start of the pixels."""
    head = bytes(data[:256])
    numbers: typing.List[int] = []
    at = 2
    while head[:2] == b"P6" and len(numbers) < 3 and at < len(head):
        if head[at:at + 1].isspace():
            at += 1
        elif head[at:at + 1] == b"#":
            at = (head.find(b"\n", at) + 1) or len(head)
        else:
            end = at
            while head[end:end + 1].isdigit():
                end += 1
            if end == at:
                break
            numbers.append(int(head[at:end]))
            at = end
    if len(numbers) != 3 or numbers[2] != 255:
        raise ValueError(f"this is no raw picture (binary PPM, P6): it begins with {head[:8]!r}")
    width, height, start = numbers[0], numbers[1], at + 1
    if len(data) < start + width * height * 3:
        raise ValueError(f"this raw picture of {width} x {height} is cut off after {len(data)} bytes")
    return width, height, start


def raw_pieces(array: typing.Any) -> typing.Tuple[bytes, memoryview]:
    """Returns header and pixels of an array of uint8, height x width x 3 or height x width, as a raw picture."""
    import numpy
    if array.dtype != numpy.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)):
        raise TypeError(f"a picture is an array of uint8, height x width x 3 or height x width; found {array.dtype}, "
                        f"{' x '.join(map(str, array.shape))}")
    if array.ndim == 2 or array.shape[2] == 1:
        array = numpy.repeat(array.reshape(array.shape[0], array.shape[1], 1), 3, axis=2)
    array = numpy.ascontiguousarray(array)
    return b"P6\n%d %d\n255\n" % (array.shape[1], array.shape[0]), memoryview(array).cast("B")


class Column(Sequence):  # type: ignore[type-arg]
    """The values of one column. `column[i]` is a plain value; `numpy()` and `arrow()` show the memory without a copy."""

    __slots__ = ("name", "type", "null_count", "buffers", "_length", "_offset", "_lease")

    def __init__(self, name: str, type: typing.Any, length: int, null_count: int, buffers: typing.Any, lease: Lease,
                 offset: int = 0) -> None:
        self.name, self.type, self.null_count, self.buffers = name, type, null_count, buffers
        self._length, self._offset, self._lease = length, offset, lease

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: typing.Any) -> typing.Any:
        if isinstance(at, slice):
            return self.list()[at]
        if not -self._length <= at < self._length:
            raise IndexError(f"row {at} of {self._length}")
        at = at + self._length if at < 0 else at
        return self.slice(at, 1).list()[0]

    def __iter__(self) -> typing.Iterator[typing.Any]:
        return iter(self.list())

    def slice(self, start: int, length: int) -> "Column":
        """Returns some rows, without a copy."""
        length = max(0, min(length, self._length - start))
        part = Column(self.name, self.type, length, self.null_count, self.buffers, self._lease, self._offset + start)
        if self.null_count:
            part.null_count = length - sum(part.valid())
        return part

    def valid(self) -> typing.List[bool]:
        """Returns for each row whether it has a value."""
        if not self.null_count or self.buffers[0] is None:
            return [True] * self._length
        return bits(self.buffers[0], self._offset, self._length)

    def list(self) -> Values:
        """Returns the values as plain Python values; None where there is none."""
        values = self._values()
        if self.null_count:
            return [value if valid else None for value, valid in zip(values, self.valid())]
        return list(values)

    def _values(self) -> typing.Any:
        start, end = self._offset, self._offset + self._length
        kind, (_, first, second) = self.type, self.buffers
        if kind == "int64" or kind == "float64":
            return struct.unpack_from(f"={self._length}{'q' if kind == 'int64' else 'd'}", first, start * 8)
        if kind == "bool":
            return bits(first, start, self._length)
        if isinstance(kind, TensorType):
            return [self._tensor(at) for at in range(start, end)]
        ends = struct.unpack_from(f"={self._length + 1}i", first, start * 4)
        pairs = zip(ends, ends[1:])
        if kind == "text":
            return [str(second[a:b], "utf-8") for a, b in pairs]
        views = [self._lease.keep(second[a:b]) for a, b in pairs]
        return [Image(view) for view in views] if kind == "image" else views

    def _tensor(self, at: int) -> typing.Any:
        kind, bytes_each = self.type, self.type.size * self.type.width
        view = self._lease.keep(self.buffers[1][at * bytes_each:(at + 1) * bytes_each])
        try:
            import numpy
        except ImportError:
            return nested(list(struct.unpack(f"={kind.size}{kind.letter}", view)), kind.shape)
        return numpy.frombuffer(view, kind.letter).reshape(kind.shape)

    def numpy(self) -> "numpy.ndarray[typing.Any, typing.Any]":  # type: ignore[valid-type,unused-ignore]
        """Returns a NumPy array: numbers and tensors without a copy, texts, pictures and sounds as objects.

        Empty values of a float64 column become NaN, in a copy; those of other numbers are an error.
        """
        import numpy
        kind, start, count = self.type, self._offset, self._length
        if kind == "float64" and self.null_count:
            return numpy.array([numpy.nan if value is None else value for value in self.list()])
        if kind in ("text", "image", "audio", "bytes"):
            array = numpy.empty(count, object)
            array[:] = self.list()
            return array
        if self.null_count:
            raise ValueError(f"the column `{self.name}` has {self.null_count} empty values, which a NumPy array of "
                             f"{kind} cannot show: use .list() or .arrow()")
        if kind in ("int64", "float64"):
            return numpy.frombuffer(self.buffers[1], "q" if kind == "int64" else "d", count, start * 8)
        if kind == "bool":
            packed = numpy.frombuffer(self.buffers[1], numpy.uint8)
            return numpy.unpackbits(packed, bitorder="little")[start:start + count].astype(bool)
        flat = numpy.frombuffer(self.buffers[1], kind.letter, count * kind.size, start * kind.size * kind.width)
        return flat.reshape((count, *kind.shape))

    def arrow(self) -> typing.Any:
        """Returns a `pyarrow.Array` of this memory."""
        import pyarrow
        whole = [None if buffer is None else pyarrow.py_buffer(buffer) for buffer in self.buffers]
        valid = whole[0] if self.null_count else None
        if not isinstance(self.type, TensorType):
            kind = arrow_type(self.type)
            used = [valid, *whole[1:(2 if self.type in ("int64", "float64", "bool") else 3)]]
            return pyarrow.Array.from_buffers(kind, self._length, used, self.null_count, self._offset)
        element = arrow_type(self.type).value_type
        count = (self._offset + self._length) * self.type.size
        values = pyarrow.Array.from_buffers(element, count, [None, whole[1]], 0)
        return pyarrow.Array.from_buffers(arrow_type(self.type), self._length, [valid], self.null_count, self._offset,
                                          children=[values])

    def __repr__(self) -> str:
        return f"<tidemill.Column {self.name}: {self.type}, {self._length} rows>"


def arrow_type(kind: typing.Any) -> typing.Any:
    """Returns the pyarrow type of a column."""
    import pyarrow
    if isinstance(kind, TensorType):
        elements = {"float32": pyarrow.float32(), "float16": pyarrow.float16(), "int64": pyarrow.int64(),
                    "uint8": pyarrow.uint8(), "float64": pyarrow.float64(), "int32": pyarrow.int32(),
                    "int8": pyarrow.int8()}
        return pyarrow.list_(pyarrow.field("item", elements[kind.element], False), kind.size)
    return {"text": pyarrow.utf8(), "int64": pyarrow.int64(), "float64": pyarrow.float64(), "bool": pyarrow.bool_(),
            "image": pyarrow.binary(), "audio": pyarrow.binary(), "bytes": pyarrow.binary()}[kind]


def bits(buffer: typing.Any, offset: int, length: int) -> typing.List[bool]:
    """Returns the bits of a bitmap, least significant first."""
    whole = int.from_bytes(buffer[offset // 8:(offset + length + 7) // 8], "little") >> (offset % 8)
    return [digit == "1" for digit in format(whole | 1 << length, "b")[:0:-1]][:length]


def nested(flat: typing.Any, shape: typing.Tuple[int, ...]) -> typing.Any:
    """Returns a flat list as nested lists of this shape."""
    for side in reversed(shape[1:]):
        flat = [flat[at:at + side] for at in range(0, len(flat), side)] if side else flat
    return flat if shape else flat[0]


class Record(typing.Dict[str, typing.Any]):
    """One record: its values by column. `time` is its event time in microseconds since 1970.

    In a sink, `id` is its identity, which is the same after a repetition.
    """

    __slots__ = ("time", "id", "sink")

    time: int
    id: bytes
    sink: str

    def __getattr__(self, name: str) -> typing.Any:
        """Returns what a record has that comes from no engine."""
        try:
            return {"time": 0, "id": b"", "sink": ""}[name]
        except KeyError:
            raise AttributeError(f"a record has no attribute {name!r}; its columns are items, such as record[{name!r}]") from None


class Batch(Mapping):  # type: ignore[type-arg]
    """Many records, by column: `batch["score"]`; `len(batch)` is the number of columns, `batch.rows` that of records."""

    def __init__(self, columns: typing.Iterable[Column], rows: int, times: Column, ids: typing.Optional[Column] = None) -> None:
        self._columns = {column.name: column for column in columns}
        self.rows, self.times, self.ids, self.sink = rows, times, ids, ""

    def __getitem__(self, name: str) -> Column:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"no column `{name}`; columns: {', '.join(self._columns)}") from None

    def __iter__(self) -> typing.Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def slice(self, start: int, length: int) -> "Batch":
        """Returns some records, without a copy."""
        columns = [column.slice(start, length) for column in self._columns.values()]
        ids = None if self.ids is None else self.ids.slice(start, length)
        return Batch(columns, max(0, min(length, self.rows - start)), self.times.slice(start, length), ids)

    def records(self) -> typing.Iterator[Record]:
        """Yields the records one by one."""
        names, lists = list(self._columns), [column.list() for column in self._columns.values()]
        rows = zip(*lists) if lists else iter([()] * self.rows)
        if self.ids is None:
            for time, values in zip(self.times.list(), rows):
                record = Record(zip(names, values))
                record.time = time
                yield record
            return
        first, sink = self.ids._offset * 16, self.sink
        ids = bytes(self.ids.buffers[2])  # 16 bytes each
        for time, start, values in zip(self.times.list(), range(first, first + 16 * self.rows, 16), rows):
            record = Record(zip(names, values))
            record.time, record.id, record.sink = time, ids[start:start + 16], sink
            yield record

    def arrow(self) -> "pyarrow.RecordBatch":
        """Returns a `pyarrow.RecordBatch` of this memory."""
        import pyarrow
        return pyarrow.RecordBatch.from_arrays([column.arrow() for column in self._columns.values()], list(self._columns))

    def numpy(self) -> typing.Dict[str, typing.Any]:
        """Returns the columns as NumPy arrays."""
        return {name: column.numpy() for name, column in self._columns.items()}

    def __repr__(self) -> str:
        return f"<tidemill.Batch of {self.rows} rows: {', '.join(self._columns)}>"
