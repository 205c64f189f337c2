"""A step: a function or an object of the user, how it is called, and what its calls give."""

import importlib
import importlib.util
import os
import sys
import traceback

from . import _declared, _output
from ._columns import Batch
from ._output import OutputError

#: Texts of errors are cut to this many characters, the middle left out.
LONGEST = 4000


class Failed(Exception):
    """A function over a batch failed: which record is to blame is not known."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def load(module: str, folder: str):
    """Imports a module by its name, or the file at a path relative to a folder."""
    if not module.endswith(".py"):
        sys.path.insert(0, os.path.abspath(folder))
        return importlib.import_module(module)
    path = os.path.abspath(os.path.join(folder, module))
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}")
    sys.path.insert(0, os.path.dirname(path))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


class NoSuchName(AttributeError):
    """A module lacks a function or class; `names` are those that it has."""

    def __init__(self, module, name: str, found):
        super().__init__(f"the module {module} has no `{name}`")
        self.names = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]


def target(hello: dict):
    """Returns the function or class that the greeting names."""
    module = load(hello["module"], hello["folder"])
    found = getattr(module, hello["name"], None)
    if found is None:
        raise NoSuchName(hello["module"], hello["name"], module)
    if isinstance(found, type) != hello["is_class"]:
        wanted, kind = ("class", "function") if hello["is_class"] else ("function", "class")
        raise TypeError(f"`{hello['name']}` is a {kind}: write `{kind}: {hello['name']}` instead of `{wanted}`")
    return found


class Step:
    """Calls a function, or `process` of an object, with records or batches."""

    def __init__(self, target, batch: bool = False):
        self.object = target() if isinstance(target, type) else None
        if self.object is not None and not callable(getattr(self.object, "process", None)):
            raise TypeError(f"the class {target.__qualname__} has no method `process`: it gets one record, or one batch")
        self.function = self.object.process if self.object is not None else target
        if not callable(self.function):
            raise TypeError(f"{target!r} is no function and no class")
        self.declared = _declared.of(self.function, batch)
        self.output, self.known = self.declared.output, set()

    def declare(self, output, known) -> None:
        """Sets the types of the output by column, and the columns of the input."""
        self.output, self.known = output, set(known)

    @property
    def has_state(self) -> bool:
        wanted = [callable(getattr(self.object, name, None)) for name in ("snapshot", "restore")]
        if any(wanted) and not all(wanted):
            raise TypeError(f"{type(self.object).__qualname__} has only one of `snapshot` and `restore`: a state needs both")
        return all(wanted)

    @property
    def has_advance(self) -> bool:
        return callable(getattr(self.object, "advance", None))

    def process(self, batch: Batch, mark=lambda row: None):
        """Calls the function; `mark` hears the row that comes next.

        Raises `Failed` where the function fails over a batch.
        """
        if self.declared.form == "record":
            return self._records(batch, mark)
        form = self.declared.form
        given = {"batch": lambda: batch, "arrow": batch.arrow, "arrays": batch.numpy,
                 "table": lambda: __import__("pyarrow").Table.from_batches([batch.arrow()])}[form]
        try:
            value = self.function(given())
            if hasattr(value, "__next__"):
                value = list(value)
        except BaseException as error:
            raise Failed("python_error", report(error)) from None
        try:
            return _output.of_batch(self.output, self.known, batch.rows, value)
        except OutputError as error:
            raise Failed("python_output", str(error)) from None

    def _records(self, batch: Batch, mark):
        given, failures = [], []
        for row, record in enumerate(batch.records()):
            mark(row)
            try:
                given += [(row, one) for one in _output.one_record(self.output, self.known, self.function(record))]
            except OutputError as error:
                failures.append({"row": row, "reason": "python_output", "detail": str(error)})
            except BaseException as error:
                failures.append({"row": row, "reason": "python_error", "detail": report(error)})
        return _output.of_records(self.output, given, failures)

    def advance(self, watermark: int):
        """Tells the object that no record with an earlier event time will come."""
        try:
            value = self.object.advance(watermark)
            given = [(0, one) for one in _output.one_record(self.output, self.known, value)]
        except OutputError as error:
            raise Failed("python_output", f"`advance`: {error}") from None
        except BaseException as error:
            raise Failed("python_error", report(error)) from None
        result = _output.of_records(self.output, given, [])
        if result.failures:
            raise Failed("python_output", f"`advance`: {result.failures[0]['detail']}")
        return result


def is_own(frame_file: str) -> bool:
    """Whether a file is one of this package."""
    return frame_file.startswith(("<tidemill/", "<frozen importlib")) or os.path.dirname(frame_file) == os.path.dirname(__file__)


def describe(error: BaseException) -> str:
    """Returns the traceback of an error, without the frames of this package."""
    trace = error.__traceback__
    while trace is not None and is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    if len(text) > LONGEST:
        text = f"{text[:LONGEST // 2]}\n...\n{text[-LONGEST // 2:]}"
    return text


def report(error: BaseException) -> str:
    """Returns the error in a line, then its traceback: lists of dead letters show the first line."""
    line = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    return f"{line[:LONGEST // 8]}\n{describe(error)}"


def place(error: BaseException):
    """Returns file and line where an error arose: the innermost frame that is not of this package, or that of its syntax."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if not is_own(frame.filename) and not frame.filename.startswith("<frozen")]
    return (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
