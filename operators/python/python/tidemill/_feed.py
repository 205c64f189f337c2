"""Records on their way from an iterator to the engine. A thread takes them from the iterator, so that those that are there
never wait for the next one; it stops while enough are ahead."""

import threading
import typing
from collections import deque

from . import _output
from ._channel import ASKED, CAUGHT_UP, DONE, OVER, READ, SEEK, Channel, code_of
from ._columns import Batch, Image
from ._output import OutputError
from ._step import Failed, report

#: Records and bytes that may be ahead.
MOST_AHEAD, MOST_BYTES = 8192, 32 << 20
#: Rows of a batch that are sent at once.
MOST_ROWS = 64 << 10
_END = object()


def is_batch(item) -> bool:
    """Whether an item is columns of many records whatever else is said."""
    return isinstance(item, Batch) or type(item).__module__.partition(".")[0] == "pyarrow"


def rows_of(batch) -> int:
    """Returns the number of rows of a batch of any form."""
    if isinstance(batch, Batch):
        return batch.rows
    if isinstance(batch, dict):
        return max((len(column) for column in batch.values()), default=0)
    return batch.num_rows


def part_of(batch, start: int, length: int):
    """Returns some rows of a batch of any form, without a copy where the form allows it."""
    if isinstance(batch, dict):
        return {name: column.slice(start, length) if hasattr(column, "slice") else column[start:start + length]
                for name, column in batch.items()}
    return batch.slice(start, length)


class Feed:
    """The records of an iterator."""

    def __init__(self, iterator, output: dict, batch: bool, position=None):
        self.iterator, self.output, self.batch, self.position = iterator, output, batch, position
        self.heavy = [name for name, kind in output.items() if kind in ("image", "audio", "bytes")]
        self.items = deque()  # (item, bytes, position after it)
        self.put, self.taken, self.count = 0, 0, 0  # bytes
        self.arrived, self.room = threading.Event(), threading.Event()
        self.awaited, self.is_stopped, self.error = False, False, None
        self.thread = threading.Thread(target=self._pull, name="tidemill-feed", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Takes no further record."""
        self.is_stopped = True
        self.room.set()

    def _pull(self) -> None:
        try:
            for item in self.iterator:
                if self.is_stopped:
                    break
                many = item if isinstance(item, list) else (item,)
                for at, one in enumerate(many, 1):
                    weight = self._weight(one)
                    self.put += weight
                    after = self.position() if self.position is not None and at == len(many) else None
                    self.items.append((one, weight, after))
                if self.awaited:
                    self.arrived.set()
                while (len(self.items) > MOST_AHEAD or self.put - self.taken > MOST_BYTES) and not self.is_stopped:
                    self.room.clear()
                    if len(self.items) > MOST_AHEAD or self.put - self.taken > MOST_BYTES:
                        self.room.wait()
        except BaseException as error:
            self.error = error
        if self.is_stopped and hasattr(self.iterator, "close"):
            try:
                self.iterator.close()
            except Exception as error:
                self.error = self.error or error
        self.items.append((_END, 0, None))
        self.arrived.set()

    def _weight(self, item) -> int:
        if isinstance(item, dict) and not self.batch:
            weight = 0
            for name in self.heavy:
                value = item.get(name)
                value = value.data if isinstance(value, Image) else value
                weight += getattr(value, "nbytes", None) or (len(value) if hasattr(value, "__len__") else 0)
            return weight
        if is_batch(item):
            return getattr(item, "nbytes", 1 << 20)
        if isinstance(item, dict):
            return sum(getattr(column, "nbytes", 8 * len(column)) for column in item.values() if hasattr(column, "__len__"))
        return 0

    def take(self, rows: int, size: int, wait: float):
        """Returns records or one batch, and the position after them: `(items, position)`; no items if none came in this time,
        None at the end."""
        if not self.items:
            self.arrived.clear()
            self.awaited = True
            if not self.items:
                self.arrived.wait(wait)
            self.awaited = False
        found, position, weight = [], None, 0
        while self.items and len(found) < rows and weight < size:
            item, of_item, after = self.items[0]
            if item is _END:
                if not found:
                    return None
                break
            is_many = is_batch(item) or self.batch and isinstance(item, dict)
            if is_many and found:
                break
            self.items.popleft()
            weight += of_item
            found.append(item)
            position = after
            if is_many:
                break
        self.taken += weight
        self.room.set()
        return found, position

    @property
    def is_empty(self) -> bool:
        return not self.items


class Feeding(Channel):
    """Answers the engine's calls for records of a feed."""

    feed: typing.Optional[Feed] = None

    def __init__(self, control: typing.Any, requests: int, results: int) -> None:
        super().__init__(control, requests, results)
        self.output, self.rest, self.is_started = {}, None, False

    def declare(self, output: dict) -> None:
        self.output, self.codes = output, [code_of(kind) for kind in output.values()]

    def handle(self, kind: int, number: int, body: bytes) -> None:
        if kind == READ:
            self.read(number, *ASKED.unpack(body))
        elif kind == SEEK:
            self.seek(body.decode())
            self.send(DONE, number, b"")
        else:
            super().handle(kind, number, body)

    def seek(self, position: str) -> None:
        raise RuntimeError("the records cannot be read again")

    def begin(self) -> None:
        """Starts the feed; called once, before the first record."""
        self.feed.start()

    def read(self, number: int, rows: int, size: int, milliseconds: int) -> None:
        if not self.is_started:
            self.is_started = True
            self.begin()
        if self.rest is not None:
            self.part(number)
            return
        taken = self.feed.take(rows, size, milliseconds / 1000)
        if taken is None:
            if self.feed.error is not None:
                raise Failed("python_error", report(self.feed.error))
            self.send(OVER, number, b"")
            return
        items, position = taken
        if len(items) == 1 and (is_batch(items[0]) or self.feed.batch and isinstance(items[0], dict)):
            batch = items[0]
            if not isinstance(batch, (dict, Batch)):
                batch = dict(zip(batch.schema.names, batch.columns))
            self.rest = (batch, 0, rows_of(batch), position)
            self.part(number)
            return
        if all(type(item) is dict and len(item) == len(self.output) for item in items):
            try:
                columns = [_output.of_values(name, of, [item[name] for item in items]) for name, of in self.output.items()]
                self.reply(number, _output.Result(len(items), None, columns, []), position)
                return
            except (KeyError, OutputError):
                pass  # which record is to blame is found out below
        given, failures = [], []
        for row, item in enumerate(items):
            try:
                given.append((row, _output.check_record(item, self.output, ())))
            except OutputError as error:
                failures.append({"row": row, "reason": "python_output", "detail": str(error)})
        result = _output.of_records(self.output, given, failures)
        if not result.failures:
            result.rows = None
        self.reply(number, result, position)

    def part(self, number: int) -> None:
        """Sends some rows of a batch; the position is known after its last one."""
        batch, start, rows, position = self.rest
        length = min(MOST_ROWS, rows - start)
        part = batch if length == rows else part_of(batch, start, length)
        self.rest = None if start + length == rows else (batch, start + length, rows, position)
        try:
            result = _output.of_batch(self.output, (), None, part)
        except OutputError as error:
            self.rest = None
            raise Failed("python_output", str(error)) from None
        result.rows = None
        self.reply(number, result, position if self.rest is None else None)

    def reply(self, number: int, result, position) -> None:
        flags, encoded = self.encode(result)
        if self.rest is None and self.feed.is_empty:
            flags |= CAUGHT_UP
        self.answer(number, flags, encoded, "" if position is None else position)
