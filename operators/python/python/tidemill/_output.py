"""What a step gave: its check against the declared columns, and its form in shared memory."""

import dataclasses
import struct
from array import array
from itertools import accumulate
from numbers import Integral, Real

from ._columns import Batch, Column, Image, arrow_type, bits, raw_pieces
from ._types import TensorType

#: Buffers begin at multiples of it.
ALIGNMENT = 64
#: The column of a batch with the row of the input that each row comes from.
ROW = "_row"


class OutputError(Exception):
    """A step gave something else than it declares; `at` is the position of the value, where one is to blame."""

    def __init__(self, message: str, at=None):
        super().__init__(message)
        self.at = at


def shown(value) -> str:
    """Describes a value and its type, shortened."""
    text = repr(value)
    kind = "None" if value is None else type(value).__name__
    return f"{kind} {text if len(text) <= 60 else text[:57] + '...'}" if value is not None else kind


class Buffers:
    """A column to send: the rows, the empty ones, and validity, first and second buffer, each a list of pieces."""

    def __init__(self, length: int, null_count: int, validity, first, second=()):
        self.length, self.null_count = length, null_count
        self.buffers = [[validity] if null_count else [], list(first), list(second)]


def of_values(name: str, kind, values) -> Buffers:
    """Converts plain values; None is an empty one."""
    values = values if isinstance(values, (list, tuple)) else list(values)
    kinds = set(map(type, values))
    null_count = sum(value is None for value in values) if type(None) in kinds else 0
    validity = pack([value is not None for value in values]) if null_count else None
    if isinstance(kind, TensorType):
        empty = bytes(kind.size * kind.width)
        pieces = [empty if value is None else tensor(name, kind, value, at) for at, value in enumerate(values)]
        return Buffers(len(values), null_count, validity, pieces)
    if kind in ("int64", "float64", "bool"):
        filled = _numbers(name, kind, values, kinds)
        return Buffers(len(values), null_count, validity, [filled])
    if kind == "text" and kinds == {str}:
        return _texts(name, values)
    pieces, ends = [], array("i", [0])
    end = 0
    for at, value in enumerate(values):
        if value is not None:
            parts = [_text(name, value, at)] if kind == "text" else _binary(name, kind, value, at)
            pieces += parts
            end += sum(map(len, parts))
        if end > 0x7FFFFFFF:
            raise OutputError(f"the column `{name}` has more than 2 GiB in one batch: give fewer records at once")
        ends.append(end)
    return Buffers(len(values), null_count, validity, [ends], pieces)


def _texts(name: str, values) -> Buffers:
    """Converts texts without an empty one."""
    try:
        pieces = [value.encode() for value in values]
    except UnicodeEncodeError:
        pieces = [_text(name, value, at) for at, value in enumerate(values)]
    ends = array("q", accumulate(map(len, pieces), initial=0))
    if ends[-1] > 0x7FFFFFFF:
        raise OutputError(f"the column `{name}` has more than 2 GiB in one batch: give fewer records at once")
    return Buffers(len(values), 0, None, [array("i", ends)], [b"".join(pieces)])


def _numbers(name: str, kind: str, values, kinds):
    expected = {"int64": int, "float64": float, "bool": bool}[kind]
    if not kinds <= {expected}:
        values = [_number(name, kind, value, at) for at, value in enumerate(values)]
    if kind == "bool":
        return pack(values)
    try:
        return array("q" if kind == "int64" else "d", values)
    except OverflowError:
        at = next(at for at, value in enumerate(values) if not -(1 << 63) <= value < 1 << 63)
        raise OutputError(f"column `{name}`: {values[at]} does not fit into int64", at) from None


def _number(name: str, kind: str, value, at: int):
    if value is None:
        return {"int64": 0, "float64": 0.0, "bool": False}[kind]
    is_truth = isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
    if kind == "bool" and is_truth:
        return bool(value)
    if kind == "int64" and isinstance(value, Integral) and not is_truth:
        return int(value)
    if kind == "float64" and isinstance(value, Real) and not is_truth:
        return float(value)
    raise wrong(name, kind, value, at)


def wrong(name: str, kind, value, at=None) -> OutputError:
    return OutputError(f"column `{name}`: expected {kind}, found {shown(value)}", at)


def _text(name: str, value, at: int) -> bytes:
    if not isinstance(value, str):
        raise wrong(name, "text", value, at)
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise OutputError(f"column `{name}`: the text is no Unicode: {error}", at) from None


def _binary(name: str, kind: str, value, at: int) -> list:
    if isinstance(value, Image):
        value = value.data
    if isinstance(value, (bytes, bytearray, memoryview)):
        view = memoryview(value)
        return [view if view.contiguous and view.itemsize == 1 and view.ndim == 1 else view.tobytes()]
    if kind == "image" and hasattr(value, "__array_interface__"):
        try:
            return list(raw_pieces(value if hasattr(value, "dtype") else __import__("numpy").asarray(value)))
        except TypeError as error:
            raise OutputError(f"column `{name}`: {error}", at) from None
    raise wrong(name, f"{kind} (bytes{', tidemill.Image or a NumPy array' if kind == 'image' else ''})", value, at)


def tensor(name: str, kind: TensorType, value, at: int):
    """Converts one tensor: an array of the shape, or nested lists."""
    if hasattr(value, "__array_interface__"):
        import numpy
        found = numpy.asarray(value)
        if found.shape != kind.shape or not numpy.can_cast(found.dtype, kind.letter, "same_kind"):
            raise OutputError(f"column `{name}`: expected {kind}, found an array of {found.dtype} of shape {found.shape}", at)
        return memoryview(numpy.ascontiguousarray(found, kind.letter)).cast("B")
    flat, shape, level = [value], [], value
    while isinstance(level, (list, tuple)):
        shape.append(len(level))
        level = level[0] if level else None
    for _ in shape:
        flat = [inner for outer in flat for inner in (outer if isinstance(outer, (list, tuple)) else [outer])]
    if tuple(shape) != kind.shape or len(flat) != kind.size:
        raise OutputError(f"column `{name}`: expected {kind}, found {shown(value)}", at)
    try:
        return struct.pack(f"={kind.size}{kind.letter}", *flat)
    except (struct.error, OverflowError) as error:
        raise OutputError(f"column `{name}`: expected {kind}, found {shown(value)}: {error}", at) from None


def pack(truths) -> bytes:
    """Packs truth values into a bitmap, least significant bit first."""
    digits = "".join("1" if truth else "0" for truth in reversed(list(truths)))
    return int(digits or "0", 2).to_bytes((len(digits) + 7) // 8, "little")


def of_column(name: str, kind, values, rows=None) -> Buffers:
    """Converts a column of any form that a batch may have."""
    module = type(values).__module__.partition(".")[0]
    if isinstance(values, Column):
        if values.type == kind and values._offset == 0 and not values.null_count:
            return Buffers(len(values), 0, None, *([buffer] if buffer is not None else [] for buffer in values.buffers[1:]))
        built = of_values(name, kind, values.list())
    elif module == "numpy" and hasattr(values, "dtype") and getattr(values, "ndim", 0) > 0:
        built = _of_numpy(name, kind, values)
    elif module == "pyarrow":
        built = _of_arrow(name, kind, values)
    elif isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise OutputError(f"column `{name}`: expected a list or an array with a value for each row, found {shown(values)}")
    else:
        built = of_values(name, kind, values)
    if rows is not None and built.length != rows:
        raise OutputError(f"the column `{name}` has {built.length} rows, others have {rows}: all must have as many")
    return built


def _of_numpy(name: str, kind, values) -> Buffers:
    import numpy
    letter = values.dtype.kind
    found = OutputError(f"column `{name}`: expected {kind}, found an array of {values.dtype} of shape {values.shape}")
    if isinstance(kind, TensorType) and letter != "O":
        if values.shape[1:] != kind.shape or not numpy.can_cast(values.dtype, kind.letter, "same_kind"):
            raise found
        return Buffers(len(values), 0, None, [_bytes(numpy.ascontiguousarray(values, kind.letter))])
    if kind == "image" and letter == "u" and values.ndim in (3, 4):
        return of_values(name, kind, list(values))
    if values.ndim != 1:
        raise found
    if letter in "OUT" or isinstance(kind, TensorType) or kind in ("text", "image", "audio", "bytes"):
        if letter not in "OUST":
            raise found
        return of_values(name, kind, values.tolist())
    accepted = {"int64": "iu", "float64": "fiu", "bool": "b"}[kind]
    if letter not in accepted or (kind == "int64" and values.dtype == numpy.uint64):
        raise found
    if kind == "bool":
        return Buffers(len(values), 0, None, [_bytes(numpy.packbits(values, bitorder="little"))])
    return Buffers(len(values), 0, None, [_bytes(numpy.ascontiguousarray(values, "q" if kind == "int64" else "d"))])


def _bytes(values):
    return memoryview(values.reshape(-1)).cast("B") if values.size else b""


def _of_arrow(name: str, kind, values) -> Buffers:
    import pyarrow
    if isinstance(values, pyarrow.Scalar):
        raise OutputError(f"column `{name}`: expected an array, found one value")
    if isinstance(values, pyarrow.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pyarrow.ChunkedArray):  # of no chunk, in some versions
        values = pyarrow.concat_arrays(values.chunks) if values.num_chunks else pyarrow.array([], values.type)
    expected = arrow_type(kind)
    if values.type != expected:
        number = pyarrow.types.is_integer(values.type) or pyarrow.types.is_floating(values.type)
        same = (kind in ("int64", "float64") and number) or pyarrow.types.is_null(values.type)
        same = same or (kind == "text" and pyarrow.types.is_large_string(values.type))
        same = same or isinstance(kind, TensorType)
        same = same or (kind in ("image", "audio", "bytes") and pyarrow.types.is_large_binary(values.type))
        try:
            if not same:
                raise pyarrow.ArrowInvalid("no conversion is made")
            values = values.cast(expected)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
            raise OutputError(f"column `{name}`: expected {kind}, found {values.type}: {error}") from None
    start, count, nulls = values.offset, len(values), values.null_count
    buffers = [None if buffer is None else memoryview(buffer) for buffer in values.buffers()]
    validity = _bitmap(buffers[0], start, count) if nulls else None
    if isinstance(kind, TensorType):
        flat, each = values.buffers()[-1], kind.size * kind.width
        inner = values.values.offset * kind.width  # `values` does not heed the offset of the list
        view = memoryview(flat)[inner + start * each:inner + (start + count) * each] if count else b""
        return Buffers(count, nulls, validity, [view])
    if kind == "bool":
        return Buffers(count, nulls, validity, [_bitmap(buffers[1], start, count)])
    if kind in ("int64", "float64"):
        return Buffers(count, nulls, validity, [buffers[1][start * 8:(start + count) * 8] if count else b""])
    if not count:
        return Buffers(0, 0, None, [bytes(4)])
    ends = buffers[1][start * 4:(start + count + 1) * 4].cast("i")
    first, last = ends[0], ends[count]
    data = buffers[2][first:last] if buffers[2] is not None else b""
    if first:
        ends = array("i", [end - first for end in ends])
    return Buffers(count, nulls, validity, [ends], [data])


def _bitmap(buffer, offset: int, length: int):
    if buffer is None or not length:
        return b""
    if offset % 8 == 0:
        return buffer[offset // 8:(offset + length + 7) // 8]
    return pack(bits(buffer, offset, length))


class Result:
    """The rows that a call gave: the row of the input of each (None: one for one), the columns, and the rejected rows."""

    def __init__(self, length: int, rows, columns, failures):
        self.length, self.rows, self.columns, self.failures = length, rows, columns, failures


def of_records(output, given, failures) -> Result:
    """Makes columns of records: pairs of the row of the input and a dictionary. A wrong one rejects its row alone."""
    rejected = {failure["row"] for failure in failures}
    given = [pair for pair in given if pair[0] not in rejected]
    try:
        return Result(len(given), [row for row, _ in given], _columns(output, [values for _, values in given]), failures)
    except (OutputError, KeyError):
        pass  # which one is to blame is found out below
    bad = {}
    for row, values in given:
        try:
            _columns(output, [values])
        except OutputError as error:
            bad.setdefault(row, str(error))
        except KeyError as error:
            bad.setdefault(row, missing(error.args[0], values))
    given = [pair for pair in given if pair[0] not in bad]
    failures = failures + [{"row": row, "reason": "python_output", "detail": text} for row, text in bad.items()]
    return Result(len(given), [row for row, _ in given], _columns(output, [values for _, values in given]), failures)


def _columns(output, records) -> list:
    return [of_values(name, kind, [record[name] for record in records]) for name, kind in output.items()]


def missing(name: str, values) -> str:
    return f"the column `{name}` is missing; found {', '.join(f'`{key}`' for key in values) or 'no column'}"


def check_record(value, output, known):
    """Returns a dictionary that a step gave, or refuses something else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if not isinstance(value, dict):
        raise OutputError(f"expected a dictionary with {', '.join(f'`{name}`' for name in output)}, a list of them or None, "
                          f"found {shown(value)}")
    for name in value:
        if name not in output and name not in known:
            raise OutputError(f"the column `{name}` is not declared; declared: {', '.join(f'`{column}`' for column in output)}")
    return value


def of_batch(output, known, rows, value) -> Result:
    """Makes columns of what a function over a batch gave; of a source, `rows` is None."""
    if value is None:
        return Result(0, [], [of_values(name, kind, []) for name, kind in output.items()], [])
    module = type(value).__module__.partition(".")[0]
    if module == "pyarrow" and hasattr(value, "column_names"):
        value = {name: value.column(name) for name in value.column_names}
    elif module == "pyarrow":
        value = {field.name: value.column(at) for at, field in enumerate(value.schema)}
    elif isinstance(value, Batch):
        value = dict(value)
    if isinstance(value, list):
        if len(value) != rows:
            raise OutputError(f"expected a dictionary of columns, or a list with an item for each of {rows} rows, "
                              f"found a list of {len(value)}")
        return of_records(output, *_rows(output, known, value))
    if not isinstance(value, dict):
        raise OutputError(f"expected a dictionary of columns, found {shown(value)}")
    for name in value:
        if name not in output and name not in known and name != ROW:
            raise OutputError(f"the column `{name}` is not declared; declared: {', '.join(f'`{column}`' for column in output)}")
    for name in output:
        if name not in value:
            raise OutputError(missing(name, value))
    origin = None
    if ROW in value and rows is not None:
        origin = [int(row) for row in (value[ROW].to_pylist() if hasattr(value[ROW], "to_pylist") else value[ROW])]
        wrong_row = next((row for row in origin if not 0 <= row < rows), None)
        if wrong_row is not None:
            raise OutputError(f"`{ROW}` names row {wrong_row} of a batch of {rows}")
    count, built = None if origin is None else len(origin), []
    for name, kind in output.items():
        built.append(of_column(name, kind, value[name], count))
        count = built[-1].length if count is None else count
    count = rows if count is None and rows is not None else count or 0
    if origin is None and rows is not None and count != rows:
        raise OutputError(f"the batch has {rows} rows and the result {count}: add a column `{ROW}` with the row of the batch "
                          "that each row comes from, counted from 0")
    return Result(count, origin, built, [])


def _rows(output, known, values):
    given, failures = [], []
    for row, value in enumerate(values):
        try:
            given += [(row, one) for one in one_record(output, known, value)]
        except OutputError as error:
            failures.append({"row": row, "reason": "python_output", "detail": str(error)})
    return given, failures


def one_record(output, known, value) -> list:
    """Returns the records that a function over one record gave."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [check_record(value, output, known)]
    if isinstance(value, (list, tuple)) or hasattr(value, "__next__"):
        return [check_record(one, output, known) for one in value]
    return [check_record(value, output, known)]
