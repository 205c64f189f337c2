"""A sink: a function, or an object with `write`, and with `commit`, `committed` and `close` if it has them."""

import struct

from . import _declared, _step
from ._channel import BATCH, CLOSE, COMMIT, DONE, MARK, NO_ROW, VERSION, Channel


class Sink(Channel):
    """Gives rows to a function or object of the user."""

    object = None

    def start(self, hello: dict) -> dict:
        self.greet(hello)
        target = _step.target(hello)
        arguments = hello.get("arguments") or {}
        if isinstance(target, type):
            self.object = target(**arguments)
            self.function = getattr(self.object, "write", None)
            if not callable(self.function):
                raise TypeError(f"the class {target.__qualname__} has no method `write`: it gets one record, or one batch")
        else:
            self.function = target
            if arguments:
                raise TypeError("`arguments` are those of a class; a function gets only its records")
        self.form = _declared.of(self.function, hello["batch"]).form
        has_commit, has_committed = self.has("commit"), self.has("committed")
        if has_committed and not has_commit:
            raise TypeError(f"{target.__qualname__} has `committed` and no `commit`: what would it have stored?")
        answer = {"version": VERSION, "form": self.form, "has_commit": has_commit}
        if has_committed:
            stored = self.object.committed()
            if stored is not None and (not isinstance(stored, int) or stored < 0):
                raise TypeError(f"`committed` returns the epoch that was stored last, or None; found {stored!r}")
            answer["committed"] = stored or 0
        return answer

    def has(self, name: str) -> bool:
        return callable(getattr(self.object, name, None))

    def handle(self, kind: int, number: int, body: bytes) -> None:
        if kind == BATCH:
            self.write_rows(number, body)
        elif kind == COMMIT:
            if self.has("commit"):
                self.object.commit(struct.unpack("<Q", body)[0])
            self.send(DONE, number, b"")
        elif kind == CLOSE:
            if self.has("close"):
                self.object.close()
            self.send(DONE, number, b"")
        else:
            super().handle(kind, number, body)

    def write_rows(self, number: int, body: bytes) -> None:
        lease = self.lease(body)
        batch = self.rows(body, lease, True)
        try:
            if self.form == "record":
                for row, record in enumerate(batch.records()):
                    MARK.pack_into(self.mark, 0, row)
                    self.function(record)
            elif self.form == "batch":
                self.function(batch)
            elif self.form == "arrays":
                self.function(batch.numpy())
            else:
                arrow = batch.arrow()
                self.function(__import__("pyarrow").Table.from_batches([arrow]) if self.form == "table" else arrow)
        finally:
            MARK.pack_into(self.mark, 0, NO_ROW)
        del batch
        self.take(number, lease)
