"""Serves the engine in a process of its own: a step, a source or a sink. See docs/python-protocol.md."""

import faulthandler
import os
import platform
import signal
import struct
import sys
import threading

from . import _step, _types
from ._channel import ADVANCE, BATCH, DONE, KEEPS_MEMORY, MARK, NO_ROW, PLACE, READY, RESTORE, SNAPSHOT, STATE, VERSION, \
    Channel, code_of, document
from ._step import Step, describe, place

def main(control, hello: dict, requests: int, results: int) -> None:
    """Answers the greeting, then every call, until the engine closes the socket."""
    faulthandler.enable()
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR2, all_threads=True)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    threading.Thread(target=_end_with, args=(control.dup(),), name="tidemill-end", daemon=True).start()
    role = hello.get("role", "step")
    try:
        if role == "source":
            from ._source import Source as Role
        elif role == "sink":
            from ._sink import Sink as Role
        else:
            Role = Server
        server = Role(control, requests, results)
        answer = server.start(hello)
    except BaseException as error:
        file, line = place(error)
        answer = {"version": VERSION, "error": {"message": f"{type(error).__name__}: {error}", "traceback": describe(error),
                                                "file": file, "line": line, "names": getattr(error, "names", [])}}
        server = Channel(control, requests, results)
    answer.setdefault("language", f"Python {platform.python_version()}")
    server.send(READY, 0, document(answer))
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


class Server(Channel):
    """A step."""

    step = None

    def start(self, hello: dict) -> dict:
        self.greet(hello)
        target = _step.target(hello)
        self.step = step = Step(target, hello["batch"])
        given = dict(zip(self.names, self.kinds))
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
        declared = step.declared.output
        return {"version": VERSION, "form": step.declared.form,
                "output": None if declared is None else [[name, str(kind)] for name, kind in declared.items()],
                "has_state": step.object is not None and step.has_state,
                "has_advance": step.object is not None and step.has_advance}

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
            super().handle(kind, number, body)

    def compute(self, number: int, body: bytes) -> None:
        lease = self.lease(body)
        try:
            batch = self.rows(body, lease)
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
