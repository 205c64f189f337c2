"""Runs a step without the engine, for tests::

    from tidemill.testing import run_step
    from ops import blur

    def test_blur():
        assert run_step(blur, [{"camera": "a", "score": 1.0}], output={"camera": "text", "score": "float64"}) == [...]
"""

import typing

from . import _output, _types
from ._columns import Batch, Column, Lease
from ._step import Failed, Step

__all__ = ["Rejected", "StepResult", "run_step"]


class Rejected(typing.NamedTuple):
    """A record that the engine would send to the dead letters."""

    row: int
    reason: str
    detail: str


class StepResult(typing.List[typing.Dict[str, typing.Any]]):
    """The records that a step gave, as dictionaries; `rows` has the input row of each, `rejected` the failed records."""

    def __init__(self, records: typing.Iterable[typing.Dict[str, typing.Any]], rows: typing.List[int],
                 rejected: typing.List[Rejected]) -> None:
        super().__init__(records)
        self.rows, self.rejected = rows, rejected


def guess(values: typing.Iterable[typing.Any]) -> str:
    """Returns the type of a column of these values."""
    for value in values:
        kind = {bool: "bool", int: "int64", float: "float64", str: "text", bytes: "audio"}.get(type(value))
        if kind is not None:
            return kind
        if value is not None:
            return "image"
    return "text"


def make_batch(records: typing.Sequence[typing.Mapping[str, typing.Any]], types: typing.Optional[typing.Mapping[str, str]] = None,
               times: typing.Optional[typing.Sequence[int]] = None) -> Batch:
    """Makes a batch of dictionaries; `types` has the types of columns that do not follow from the values."""
    names = list(dict.fromkeys(name for record in records for name in record))
    columns = []
    lease = Lease()
    for name in names:
        values = [record.get(name) for record in records]
        kind = _types.parse((types or {}).get(name) or guess(values))
        built = _output.of_values(name, kind, values)
        buffers = [memoryview(b"".join(bytes(piece) for piece in pieces)) if pieces or at else None
                   for at, pieces in enumerate(built.buffers)]
        columns.append(Column(name, kind, built.length, built.null_count, buffers, lease))
    stamps = _output.of_values("_time", "int64", list(times or range(len(records))))
    time = Column("_time", "int64", len(records), 0, [None, memoryview(bytes(stamps.buffers[1][0])), memoryview(b"")], lease)
    return Batch(columns, len(records), time)


def run_step(target: typing.Any, records: typing.Sequence[typing.Mapping[str, typing.Any]], *,
             output: typing.Optional[typing.Mapping[str, str]] = None, types: typing.Optional[typing.Mapping[str, str]] = None,
             batch: bool = False, times: typing.Optional[typing.Sequence[int]] = None, watermark: typing.Optional[int] = None,
             raise_errors: bool = True) -> StepResult:
    """Calls a function, a class or an object's method `process` with records, as the engine does.

    `output` has the types by column, as in a workflow; an annotation of the function can say them instead. `times` are event
    times in microseconds. With `watermark`, `advance` of a class is called at the end. A record that fails raises an
    `AssertionError` unless `raise_errors` is false; then it is in `rejected`.
    """
    step = target if isinstance(target, Step) else Step(target, batch)
    given = make_batch(records, types, times)
    declared = {name: _types.parse(kind) for name, kind in output.items()} if output else step.declared.output
    if declared is None:
        raise TypeError("nothing says what columns the step gives: pass output={...}, or annotate its result")
    step.declare(declared, given)
    results = []
    rejected = []
    try:
        results.append(step.process(given))
        if watermark is not None and step.has_advance:
            results.append(step.advance(watermark))
    except Failed as failed:
        if given.rows == 1 or raise_errors or failed.reason == "python_output":
            rejected = [Rejected(row, failed.reason, failed.detail) for row in range(given.rows)]
        else:  # as the engine: one by one
            for row in range(given.rows):
                part = run_step(step, [records[row]], output=output, types=types, times=[row], raise_errors=False)
                rejected += [one._replace(row=row) for one in part.rejected]
    rejected += [Rejected(**failure) for result in results for failure in result.failures]
    if rejected and raise_errors:
        raise AssertionError("\n".join(f"record {one.row}: {one.reason}: {one.detail}" for one in rejected))
    found, rows = [], []
    for result in results:
        found += _records(declared, result)
        rows += result.rows if result.rows is not None else range(result.length)
    return StepResult(found, rows, rejected)


def _records(declared, result):
    lease = Lease()
    columns = []
    for (name, kind), built in zip(declared.items(), result.columns):
        buffers = [memoryview(b"".join(bytes(memoryview(piece).cast("B")) if len(piece) else b"" for piece in pieces))
                   for pieces in built.buffers]
        columns.append(Column(name, kind, built.length, built.null_count, buffers, lease))
    values = [column.list() for column in columns]
    return [dict(zip(declared, row)) for row in zip(*values)]
