"""Serves the engine: reads calls from a socket, and columns from memory that both share. See docs/python-protocol.md."""

import faulthandler
import json
import mmap
import os
import platform
import signal
import struct
import sys
import threading
import time

from . import _step, _types
from ._columns import Batch, Column, Lease
from ._output import ALIGNMENT
from ._step import Failed, Step, describe, place, report

VERSION = 1
HELLO, BATCH, ADVANCE, SNAPSHOT, RESTORE, END = range(1, 7)
READY, RESULT, FAILED, STATE, DONE = range(16, 21)
FRAME = struct.Struct("<IIQ")  # bytes of the body, kind, number of the call
CALL = struct.Struct("<QQQII")  # rows, start and bytes of the part of the file with requests, columns, 0
COLUMN = struct.Struct("<IIQQQQQQQQ")  # type, element, rows, empty rows, then offset and bytes of three buffers
ANSWER = struct.Struct("<QQIIII")  # rows, processor time (ns), columns, flags, freed calls, bytes of the rejected rows
PLACE = struct.Struct("<QQ")
ONE_FOR_ONE, KEEPS_MEMORY = 1, 2
TYPES = ["", "text", "int64", "float64", "bool", "image", "audio", "tensor"]
ELEMENTS = ["", "float32", "float16", "int64", "uint8"]
MARK = struct.Struct("<Q")
NO_ROW = 0xFFFF_FFFF_FFFF_FFFF
#: Where results begin: before them is the row at work.
FIRST = 4096


def main(control, hello: dict, requests: int, results: int) -> None:
    """Answers the greeting, then every call, until the engine closes the socket."""
    faulthandler.enable()
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR2, all_threads=True)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    threading.Thread(target=_end_with, args=(control.dup(),), name="tidemill-end", daemon=True).start()
    server = Server(control, requests, results)
    try:
        answer = server.start(hello)
    except BaseException as error:
        file, line = place(error)
        answer = {"version": VERSION, "error": {"message": f"{type(error).__name__}: {error}", "traceback": describe(error),
                                                "file": file, "line": line}}
    server.send(READY, 0, json.dumps(answer).encode())
    if "error" not in answer:
        server.serve()


def _end_with(control) -> None:
    """Ends the process when the engine is gone, also while a function of the user runs."""
    import select
    poll = select.poll()
    poll.register(control, select.POLLHUP)
    while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll()):
        pass
    os._exit(0)


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


class Server:
    """The state between calls."""

    def __init__(self, control, requests: int, results: int):
        self.control, self.requests, self.results = control, requests, results
        self.output_size = os.fstat(results).st_size
        self.mark = mmap.mmap(results, FIRST)
        self.kept = []  # (number, lease) of calls whose memory the user's arrays still show
        self.step, self.names, self.kinds, self.codes = None, [], [], []

    def start(self, hello: dict) -> dict:
        if hello["version"] != VERSION:
            raise RuntimeError(f"the engine speaks version {hello['version']} of the protocol, this package {VERSION}")
        module = _step.load(hello["module"], hello["folder"])
        target = getattr(module, hello["name"], None)
        if target is None:
            raise AttributeError(f"the module {hello['module']} has no `{hello['name']}`")
        if isinstance(target, type) != hello["is_class"]:
            wanted, found = ("class", "function") if hello["is_class"] else ("function", "class")
            raise TypeError(f"`{hello['name']}` is a {found}: write `{found}: {hello['name']}` instead of `{wanted}`")
        self.step = step = Step(target, hello["batch"])
        given = {name: _types.parse(kind) for name, kind in hello["input"]}
        for name, kind in (step.declared.input or {}).items():
            if name not in given:
                raise TypeError(f"the function wants a column `{name}`; the records have {', '.join(map(repr, given))}")
            if given[name] != kind:
                raise TypeError(f"the function wants `{name}` as {kind}; in the records it is {given[name]}")
        output = step.declared.output
        if hello["output"] is not None:
            output = {name: _types.parse(kind) for name, kind in hello["output"]}
        if output is not None:
            step.declare(output, given)
            self.codes = [code_of(kind) for kind in output.values()]
        self.names, self.kinds = list(given), list(given.values())
        declared = step.declared.output
        return {"version": VERSION, "language": f"Python {platform.python_version()}", "form": step.declared.form,
                "output": None if declared is None else [[name, str(kind)] for name, kind in declared.items()],
                "has_state": step.object is not None and step.has_state,
                "has_advance": step.object is not None and step.has_advance}

    def send(self, kind: int, number: int, body: bytes) -> None:
        self.control.sendall(FRAME.pack(len(body), kind, number) + body)

    def serve(self) -> None:
        while True:
            head = receive(self.control, FRAME.size)
            if len(head) < FRAME.size:
                return
            length, kind, number = FRAME.unpack(head)
            body = receive(self.control, length)
            if len(body) < length or kind == END:
                return
            try:
                self.handle(kind, number, body)
            except Failed as failed:
                self.fail(number, failed.reason, failed.detail)
            except BaseException as error:
                self.fail(number, "python_error", report(error))

    def fail(self, number: int, reason: str, detail: str) -> None:
        """Reports a failure, and the memory of earlier calls that nothing shows any more."""
        freed = self.freed(number)
        self.send(FAILED, number, json.dumps({"reason": reason, "detail": detail, "freed": freed}).encode())

    def handle(self, kind: int, number: int, body: bytes) -> None:
        if kind == BATCH:
            self.compute(number, body)
        elif kind == ADVANCE:
            flags, encoded = self.encode(self.step.advance(struct.unpack("<q", body)[0]))
            self.answer(number, flags, encoded)
        elif kind == SNAPSHOT:
            state = self.step.object.snapshot()
            if not isinstance(state, (bytes, bytearray, memoryview)):
                raise TypeError(f"`snapshot` must return bytes, found {type(state).__name__}")
            self.send(STATE, number, PLACE.pack(*self.write([[[state]]])[0]))
        elif kind == RESTORE:
            offset, length = PLACE.unpack(body)
            self.step.object.restore(os.pread(self.requests, length, offset))
            self.send(DONE, number, b"")
        else:
            raise RuntimeError(f"the engine sent a message of kind {kind}, which version {VERSION} does not have")

    def compute(self, number: int, body: bytes) -> None:
        rows, start, length, count, _ = CALL.unpack_from(body)
        memory = mmap.mmap(self.requests, length, access=mmap.ACCESS_READ, offset=start)
        lease = Lease(memory, start)
        try:
            batch = self.batch(body, rows, count, lease)
            flags, encoded = self.encode(self.step.process(batch, lambda row: MARK.pack_into(self.mark, 0, row)))
            MARK.pack_into(self.mark, 0, NO_ROW)
            del batch
            if lease.end():
                flags |= KEEPS_MEMORY
                self.kept.append((number, lease))
                lease = None
            self.answer(number, flags, encoded)
        except BaseException:
            if lease is not None:
                self.kept.append((number, lease))
            raise
        finally:
            MARK.pack_into(self.mark, 0, NO_ROW)

    def batch(self, body: bytes, rows: int, count: int, lease: Lease) -> Batch:
        columns = []
        for at in range(count):
            code, _, length, nulls, *places = COLUMN.unpack_from(body, CALL.size + at * COLUMN.size)
            kind = TYPES[code]
            is_last = at == count - 1
            if kind == "tensor":
                kind = self.kinds[at]  # with its shape, from the greeting
            spots = list(zip(places[::2], places[1::2]))
            spots[0] = spots[0] if nulls else (0, -1)
            buffers = [None if length < 0 else lease.view(offset, length) for offset, length in spots]
            columns.append(Column("_time" if is_last else self.names[at], kind, length, nulls, buffers, lease))
        times = columns.pop()
        return Batch(columns, rows, times)

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
        rejected = json.dumps(result.failures).encode() if result.failures else b""
        return flags, (result.length, len(result.columns), PLACE.pack(*places[0]) + bytes(columns), rejected)

    def answer(self, number: int, flags: int, encoded) -> None:
        length, count, places, rejected = encoded
        freed = self.freed(number)
        head = ANSWER.pack(length, time.process_time_ns(), count, flags, len(freed), len(rejected))
        self.send(RESULT, number, head + places + struct.pack(f"<{len(freed)}Q", *freed) + rejected)

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
