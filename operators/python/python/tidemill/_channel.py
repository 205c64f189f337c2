"""Messages over a socket, and columns in memory that both sides see. See docs/python-protocol.md."""

import json
import mmap
import os
import socket
import struct
import time

from . import _types
from ._columns import Batch, Column, Lease
from ._output import ALIGNMENT, Result
from ._step import Failed, report

VERSION = 1
HELLO, BATCH, ADVANCE, SNAPSHOT, RESTORE, END, READ, SEEK, COMMIT, CLOSE = range(1, 11)
READY, RESULT, FAILED, STATE, DONE, OVER = range(16, 22)
FRAME = struct.Struct("<IIQ")  # bytes of the body, kind, number of the call
CALL = struct.Struct("<QQQII")  # rows, start and bytes of the part of the file with requests, columns, 0
COLUMN = struct.Struct("<IIQQQQQQQQ")  # type, element, rows, empty rows, then offset and bytes of three buffers
ANSWER = struct.Struct("<QQIIII")  # rows, processor time (ns), columns, flags, freed calls, bytes of the rejected rows
PLACE = struct.Struct("<QQ")
ASKED = struct.Struct("<QQQ")  # records, bytes, milliseconds
ONE_FOR_ONE, KEEPS_MEMORY, CAUGHT_UP = 1, 2, 4
TYPES = ["", "text", "int64", "float64", "bool", "image", "audio", "tensor", "bytes"]
ELEMENTS = ["", "float32", "float16", "int64", "uint8", "float64", "int32", "int8", "bool", "text"]
MARK = struct.Struct("<Q")
NO_ROW = 0xFFFF_FFFF_FFFF_FFFF
#: Where results begin: before them is the row at work.
FIRST = 4096


def code_of(kind):
    """Returns the numbers of a type and of its elements."""
    if isinstance(kind, _types.TensorType):
        return TYPES.index("tensor"), ELEMENTS.index(kind.element)
    return TYPES.index(kind), 0


def receive(control, length: int) -> bytes:
    """Reads this many bytes; fewer at the end."""
    data = bytearray()
    while len(data) < length:
        piece = control.recv(length - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def unicode(value):
    """Returns a value of JSON whose texts the engine can read: half of a surrogate pair becomes an escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {unicode(name): unicode(one) for name, one in value.items()}
    return [unicode(one) for one in value] if isinstance(value, (list, tuple)) else value


def document(value) -> bytes:
    """Writes a message in JSON."""
    return json.dumps(unicode(value)).encode()


class Channel:
    """One side of a connection to the engine: receives calls, answers them. Subclasses say what the calls do."""

    def __init__(self, control, requests: int, results: int):
        self.control, self.requests, self.results = control, requests, results
        self.output_size = os.fstat(results).st_size
        self.mark = mmap.mmap(results, FIRST)
        self.kept = []  # (number, lease) of calls whose memory the user's arrays still show
        self.names, self.kinds, self.codes = [], [], []

    def greet(self, hello: dict) -> None:
        """Checks the version, and learns the columns of the input."""
        if hello["version"] != VERSION:
            raise RuntimeError(f"the engine speaks version {hello['version']} of the protocol, this package {VERSION}")
        given = {name: _types.parse(kind) for name, kind in hello["input"]}
        self.names, self.kinds = list(given), list(given.values())

    def send(self, kind: int, number: int, body: bytes) -> None:
        self.control.sendall(FRAME.pack(len(body), kind, number) + body)

    def receive(self):
        """Returns kind, number and body of the next message; None at the end."""
        head = receive(self.control, FRAME.size)
        if len(head) < FRAME.size:
            return None
        length, kind, number = FRAME.unpack(head)
        body = receive(self.control, length)
        return None if len(body) < length or kind == END else (kind, number, body)

    def hang_up(self) -> None:
        """Ends the connection; who waits for a message gets none."""
        try:
            self.control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended

    def close(self) -> None:
        """Closes socket and files. Memory that arrays show stays."""
        self.hang_up()
        self.control.close()
        self.mark.close()
        for file in (self.requests, self.results):
            os.close(file)

    def serve(self) -> None:
        """Answers calls until the engine closes the socket."""
        while True:
            message = self.receive()
            if message is None:
                return
            kind, number, body = message
            try:
                self.handle(kind, number, body)
            except Failed as failed:
                self.fail(number, failed.reason, failed.detail)
            except BaseException as error:
                self.fail(number, "python_error", report(error))

    def handle(self, kind: int, number: int, body: bytes) -> None:
        raise RuntimeError(f"the engine sent a message of kind {kind}, which version {VERSION} does not have here")

    def fail(self, number: int, reason: str, detail: str) -> None:
        """Reports a failure, and the memory of earlier calls that nothing shows any more."""
        freed = self.freed(number)
        self.send(FAILED, number, document({"reason": reason, "detail": detail, "freed": freed}))

    def lease(self, body: bytes) -> Lease:
        """Maps the memory of a call."""
        _, start, length, _, _ = CALL.unpack_from(body)
        return Lease(mmap.mmap(self.requests, length, access=mmap.ACCESS_READ, offset=start), start)

    def rows(self, body: bytes, lease: Lease, has_ids: bool = False) -> Batch:
        """Returns the records of a call."""
        rows, _, _, count, _ = CALL.unpack_from(body)
        return self.batch(body, rows, count, lease, has_ids)

    def batch(self, body: bytes, rows: int, count: int, lease: Lease, has_ids: bool = False) -> Batch:
        columns = []
        for at in range(count):
            code, _, length, nulls, *places = COLUMN.unpack_from(body, CALL.size + at * COLUMN.size)
            kind = TYPES[code]
            is_beside = at >= len(self.names)
            if kind == "tensor":
                kind = self.kinds[at]  # with its shape, from the greeting
            spots = list(zip(places[::2], places[1::2]))
            spots[0] = spots[0] if nulls else (0, -1)
            buffers = [None if length < 0 else lease.view(offset, length) for offset, length in spots]
            columns.append(Column("_" if is_beside else self.names[at], kind, length, nulls, buffers, lease))
        ids = columns.pop() if has_ids else None
        times = columns.pop()
        return Batch(columns, rows, times, ids)

    def encode(self, result):
        """Writes the columns; returns flags and the parts of the answer. Afterwards nothing of the result is needed."""
        flags, rows = 0, []
        if result.rows is None:
            flags = ONE_FOR_ONE
        else:
            rows = [struct.pack(f"<{len(result.rows)}I", *result.rows)]
        places = self.write([[rows]] + [column.buffers for column in result.columns])
        columns = bytearray()
        for at, (column, (code, element)) in enumerate(zip(result.columns, self.codes)):
            spots = [number for place in places[1 + 3 * at:4 + 3 * at] for number in place]
            columns += COLUMN.pack(code, element, column.length, column.null_count, *spots)
        rejected = document(result.failures) if result.failures else b""
        return flags, (result.length, len(result.columns), PLACE.pack(*places[0]) + bytes(columns), rejected)

    def take(self, number: int, lease: Lease) -> None:
        """Answers that the rows of a call were taken; their memory is in use as long as something shows it."""
        flags = 0
        if lease.end():
            flags = KEEPS_MEMORY
            self.kept.append((number, lease))
        self.answer(number, flags, self.encode(Result(0, [], [], []))[1])

    def answer(self, number: int, flags: int, encoded, position: str = "") -> None:
        length, count, places, rejected = encoded
        freed = self.freed(number)
        head = ANSWER.pack(length, time.process_time_ns(), count, flags, len(freed), len(rejected))
        self.send(RESULT, number, head + places + struct.pack(f"<{len(freed)}Q", *freed) + rejected + position.encode())

    def freed(self, current: int) -> list:
        """Returns the numbers of earlier calls whose memory no array shows any more."""
        freed = [number for number, lease in self.kept if number != current and not lease.end()]
        self.kept = [(number, lease) for number, lease in self.kept if number not in freed]
        return freed

    def write(self, columns) -> list:
        """Writes buffers, each a list of pieces, one after the other; returns offset and bytes of each."""
        places, pieces, offset = [], [], FIRST
        for buffers in columns:
            for buffer in buffers:
                length = 0
                for piece in buffer:
                    view = memoryview(piece).cast("B") if len(piece) else b""
                    length += len(view)
                    pieces.append(view)
                places.append((offset, length))
                rest = -length % ALIGNMENT
                if rest:
                    pieces.append(bytes(rest))
                offset += length + rest
        if offset > self.output_size:
            self.output_size = max(offset, 2 * self.output_size)
            os.ftruncate(self.results, self.output_size)
        at = FIRST
        pieces = [piece for piece in pieces if len(piece)]
        for start in range(0, len(pieces), 512):
            part = pieces[start:start + 512]
            wanted = sum(map(len, part))
            if os.pwritev(self.results, part, at) != wanted:
                position = at
                for piece in part:
                    done = 0
                    while done < len(piece):
                        done += os.pwrite(self.results, piece[done:], position + done)
                    position += len(piece)
            at += wanted
        return places
