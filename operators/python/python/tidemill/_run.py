"""Runs a workflow in a process of its own, from iterators to an iterator."""

import array
import collections
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import threading
import typing

from . import _binary
from ._binary import Finding, Workflow, WorkflowError
from ._channel import BATCH, CLOSE, COMMIT, DONE, HELLO, READY, VERSION, Channel
from ._columns import Batch, Image, Record
from ._feed import Feed, Feeding
from ._report import Report
from . import _types

if typing.TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

#: Time in which the program ends in order before it is killed.
PATIENCE = 5.0
_log = logging.getLogger("tidemill")


def iterate(records: typing.Any) -> typing.Tuple[typing.Iterator[typing.Any], bool]:
    """Returns an iterator over records or batches, and whether dictionaries in it are columns."""
    module = type(records).__module__.partition(".")[0]
    if module == "polars" and hasattr(records, "to_arrow"):
        records = records.to_arrow()
        module = "pyarrow"
    if module == "pandas" and hasattr(records, "columns"):
        return iter([{str(name): records[name].to_numpy() for name in records.columns}]), True
    if module == "pyarrow" and hasattr(records, "to_batches"):
        return iter(records.to_batches()), False
    if module == "pyarrow" and hasattr(records, "num_rows"):
        return iter([records]), False
    if isinstance(records, (dict, str, bytes)) or not hasattr(records, "__iter__"):
        raise TypeError(f"the records of a source are an iterable of dictionaries or batches, or a table; found {type(records).__name__}")
    return iter(records), False


class Fed(Feeding):
    """Gives the engine the records of an iterator of this program."""

    feed: typing.Optional[Feed] = None

    def __init__(self, control: socket.socket, requests: int, results: int, records: typing.Any):
        super().__init__(control, requests, results)
        self.records = records

    def begin(self) -> None:
        iterator, is_batch = iterate(self.records)
        self.feed = Feed(iterator, self.output, is_batch)
        super().begin()

    def run(self) -> None:
        try:
            self.serve()
        except OSError:
            pass  # the program has ended
        finally:
            if self.feed is not None:
                self.feed.stop()
            self.close()

    def handle(self, kind: int, number: int, body: bytes) -> None:
        if kind != HELLO:
            super().handle(kind, number, body)
            return
        hello = json.loads(body)
        self.greet(hello)
        self.declare({name: _types.parse(given) for name, given in hello["output"]})
        self.send(READY, number, json.dumps({"version": VERSION, "language": "", "has_position": False}).encode())


class Taken(Channel):
    """Takes the rows of a sink of the engine."""

    def __init__(self, control: socket.socket, requests: int, results: int, sink: str):
        super().__init__(control, requests, results)
        self.sink = sink
        self.lent: typing.Optional[typing.Tuple[int, typing.Any]] = None

    def next(self) -> typing.Tuple[bool, typing.Optional[Batch]]:
        """Reads one message: whether the sink goes on, and a batch, if it was one."""
        message = self.receive()
        if message is None:
            return False, None
        kind, number, body = message
        if kind == HELLO:
            hello = json.loads(body)
            self.greet(hello)
            self.send(READY, number, json.dumps({"version": VERSION, "language": ""}).encode())
        elif kind == BATCH:
            lease = self.lease(body)
            batch = self.rows(body, lease, True)
            batch.sink = self.sink
            self.lent = (number, lease)
            return True, batch
        elif kind in (COMMIT, CLOSE):
            self.send(DONE, number, b"")
        return True, None

    def give_back(self) -> None:
        """Lets the engine write on: the batch that was lent is seen as read."""
        if self.lent is not None:
            (number, lease), self.lent = self.lent, None
            try:
                self.take(number, lease)
            except OSError:
                pass  # the program has ended

    def close(self) -> None:
        if self.lent is not None:
            self.lent[1].end()
        super().close()


class Run:
    """A workflow that runs. Iterating gives the records of its sinks as they come; `batches()` gives them by columns.

    The program ends when the sources end, when the iterator is closed, with Ctrl-C, and with this process.
    """

    def __init__(self, workflow: Workflow, inputs: typing.Mapping[str, typing.Any],
                 outputs: typing.Optional[typing.Sequence[str]], options: typing.Sequence[str]):
        self._selector = selectors.DefaultSelector()
        self._feeds: typing.List[Fed] = []
        self._sinks: typing.Dict[str, Taken] = {}
        self._lines: typing.Deque[str] = collections.deque(maxlen=200)
        self._left: typing.Iterator[Record] = iter(())
        self._lending: typing.Optional[Taken] = None
        self._is_over = False
        self._report: typing.Optional[Report] = None
        self._error: typing.Optional[BaseException] = None
        self._inputs = dict(inputs)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        self._out = _binary.memory("tidemill-report")
        wants = {"inputs": list(inputs), "outputs": None if outputs is None else list(outputs), "socket": theirs.fileno()}
        with theirs, _binary.Input(workflow) as given:
            command = [_binary.program(), "run", given.argument, "--caller", json.dumps(wants), "--output", "json", *options]
            self._child = subprocess.Popen(command, stdin=given.stdin, stdout=self._out, stderr=subprocess.PIPE,
                                           pass_fds=[theirs.fileno()], env=_binary.environment(), start_new_session=True)
        assert self._child.stderr is not None
        os.set_blocking(self._child.stderr.fileno(), False)
        self._selector.register(ours, selectors.EVENT_READ, self._connect)
        self._selector.register(self._child.stderr, selectors.EVENT_READ, self._hear)
        self._rest = b""

    def _connect(self) -> None:
        try:
            message, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(3 * array.array("i").itemsize))
        except ConnectionError:
            message, ancillary = b"", []
        if not message:
            self._selector.unregister(self._socket)
            return
        numbers = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers.frombytes(data[:len(data) - len(data) % numbers.itemsize])
        control, requests, results = socket.socket(fileno=numbers[0]), numbers[1], numbers[2]
        name = message.decode()
        if name in self._inputs:
            fed = Fed(control, requests, results, self._inputs[name])
            self._feeds.append(fed)
            threading.Thread(target=fed.run, name=f"tidemill-{name}", daemon=True).start()
        else:
            taken = self._sinks[name] = Taken(control, requests, results, name)
            self._selector.register(control, selectors.EVENT_READ, taken)

    def _hear(self) -> None:
        assert self._child.stderr is not None
        data = self._child.stderr.read(1 << 16)
        if data is None:
            return
        if not data:
            self._selector.unregister(self._child.stderr)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines + ([self._rest] if not data and self._rest else []):
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            _log.info(text)

    def _next(self) -> typing.Optional[Batch]:
        """Returns the next batch; None at the end."""
        if self._lending is not None:
            self._lending.give_back()
            self._lending = None
        try:
            while self._selector.get_map():
                for key, _ in self._selector.select():
                    if not isinstance(key.data, Taken):
                        key.data()
                        continue
                    goes_on, batch = key.data.next()
                    if not goes_on:
                        self._selector.unregister(key.fileobj)
                    if batch is not None:
                        self._lending = key.data
                        return batch
            self._end()
            return None
        except BaseException:
            self.close()
            raise

    def _end(self) -> None:
        """Reads what the program said at its end."""
        if self._is_over:
            return
        status = self._child.wait()
        self._is_over = True
        self._out.seek(0)
        text = self._out.read()
        errors = [fed.feed.error for fed in self._feeds if fed.feed is not None and fed.feed.error is not None]
        self._free()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {}
        if "sinks" in answer:
            self._report = Report(answer)
        if status not in (0, 1) or "sinks" not in answer:
            found = _binary.findings_of(answer)
            log = "\n".join(self._lines)
            if not found and status < 0:
                name = signal.Signals(-status).name
                found = [Finding(None, "error", f"the program was ended by {name}", None, None, None, None)]
            raise WorkflowError(found, log) from (errors[0] if errors else None)

    def _free(self) -> None:
        for fed in self._feeds:
            if fed.feed is not None:
                fed.feed.stop()
        for fed in self._feeds:
            fed.hang_up()  # its thread closes it
        for channel in self._sinks.values():
            channel.close()
        for file in (self._socket, self._out, self._child.stderr, self._selector):
            if file is not None:
                file.close()

    def close(self) -> None:
        """Ends the run now. Rows that were not read are gone; what sinks committed to files stays."""
        if self._is_over:
            return
        self._is_over = True
        self._left = iter(())
        if self._child.poll() is None:
            self._child.terminate()
        for channel in [*self._feeds, *self._sinks.values()]:
            channel.hang_up()
        try:
            self._child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._free()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_over", True):
            self.close()

    def __iter__(self) -> "Run":
        return self

    def __next__(self) -> Record:
        for record in self._left:
            return record
        while True:
            batch = None if self._is_over else self._next()
            if batch is None:
                raise StopIteration
            # Copies: a record may be kept for long.
            self._left = iter(owned(batch))
            for record in self._left:
                return record

    def batches(self) -> typing.Iterator[Batch]:
        """Yields the rows by columns, each batch with `sink`. Its memory is used again when the next one is asked for, unless an
        array still shows it."""
        while not self._is_over:
            batch = self._next()
            if batch is None:
                return
            yield batch

    def to_arrow(self, sink: typing.Optional[str] = None) -> "pyarrow.Table":
        """Returns all rows of a sink as a `pyarrow.Table`; the name may be left out where one sink alone is read."""
        import pyarrow
        found: typing.List[typing.Any] = []
        for batch in self.batches():
            if sink is None and len(self._sinks) > 1:
                self.close()
                raise ValueError(f"the workflow has several sinks: name one of {', '.join(self._sinks)}")
            if sink is None or batch.sink == sink:
                found.append(batch.arrow())
        return pyarrow.Table.from_batches(found) if found else pyarrow.table({})

    def to_pandas(self, sink: typing.Optional[str] = None) -> "pandas.DataFrame":
        """Returns all rows of a sink as a `pandas.DataFrame`."""
        return self.to_arrow(sink).to_pandas()

    def to_polars(self, sink: typing.Optional[str] = None) -> "polars.DataFrame":
        """Returns all rows of a sink as a `polars.DataFrame`."""
        import polars
        return polars.from_arrow(self.to_arrow(sink))  # type: ignore[return-value]

    @property
    def log(self) -> typing.List[str]:
        """The last lines that the program logged."""
        return list(self._lines)

    @property
    def report(self) -> typing.Optional[Report]:
        """The report, once the run has ended by itself; in a notebook it shows as tables."""
        return self._report


def owned(batch: Batch) -> typing.List[Record]:
    """Returns the records of a batch; pictures, sounds and tensors as copies that no later batch changes."""
    heavy = [name for name, column in batch.items() if not isinstance(column.type, str) or column.type in ("image", "audio", "bytes")]
    records = list(batch.records())
    for record in records if heavy else ():
        for name in heavy:
            value = record[name]
            if isinstance(value, memoryview):
                record[name] = bytes(value)
            elif isinstance(value, Image):
                record[name] = Image(bytes(value.data))
            elif hasattr(value, "copy"):
                record[name] = value.copy()
    return records


def run(workflow: Workflow, inputs: typing.Optional[typing.Mapping[str, typing.Any]] = None,
        outputs: typing.Optional[typing.Sequence[str]] = None, *, rate: typing.Optional[str] = None,
        records: typing.Optional[int] = None, plan: typing.Optional["os.PathLike[str]"] = None,
        arguments: typing.Sequence[str] = ()) -> Run:
    """Runs a workflow: a path, the text of one, or a dictionary.

    `inputs` has records for sources by id, instead of what the workflow reads: an iterable of dictionaries or batches, or a table
    of pandas, polars or pyarrow. The rows of all sinks come to the iterator, or of those in `outputs`; other sinks write as the
    workflow says. `rate`, `records`, `plan` and `arguments` are options of `tidemill run`.

    Raises `WorkflowError`, at the first record, if the workflow is wrong or the run fails.
    """
    options = list(arguments)
    for name, value in (("--rate", rate), ("--records", records), ("--plan", plan)):
        if value is not None:
            options += [name, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return Run(workflow, inputs or {}, outputs, options)
