"""What a function declares by its annotations: one record or many, and the columns of its output."""

import collections.abc
import dataclasses
import inspect
import typing

from ._columns import Batch, Image
from ._types import Audio, TensorType

_NAMES = {str: "text", int: "int64", float: "float64", bool: "bool", Image: "image", Audio: "audio"}


class Declared:
    """`form`: record, batch, arrow, table or arrays; `output` and `input`: types by column, None where nothing is declared."""

    def __init__(self, form: str, output, input):
        self.form, self.output, self.input = form, output, input


def of(function, batch: bool) -> Declared:
    """Reads the annotations of a function of one record or batch."""
    parameters = [parameter for parameter in inspect.signature(function).parameters.values()
                  if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.VAR_POSITIONAL)]
    if not parameters:
        raise TypeError(f"{function.__qualname__} takes no argument: it gets one record, or one batch")
    needed = [parameter for parameter in parameters[1:] if parameter.default is parameter.empty
              and parameter.kind is not parameter.VAR_POSITIONAL]
    if needed:
        raise TypeError(f"{function.__qualname__} needs {len(needed) + 1} arguments: it gets one record, or one batch")
    hints = typing.get_type_hints(function)
    wanted = hints.get(parameters[0].name)
    form = _form(wanted)
    if batch and form == "record":
        form = "batch"
    return Declared(form, _columns(_given(hints.get("return"))), _columns(wanted) if form == "record" else None)


def of_source(function, batch: bool):
    """Reads the annotation of a function that yields: the types by column, None where nothing is declared, and whether it yields
    batches."""
    hint = typing.get_type_hints(function).get("return")
    arguments = typing.get_args(hint)
    inner = arguments[0] if arguments else hint
    return _columns(_given(hint)), batch or _form(inner) != "record"


def _form(wanted) -> str:
    if wanted is Batch:
        return "batch"
    module, name = getattr(wanted, "__module__", ""), getattr(wanted, "__name__", "")
    if module.partition(".")[0] == "pyarrow" and name in ("RecordBatch", "Table"):
        return "arrow" if name == "RecordBatch" else "table"
    if typing.get_origin(wanted) in (dict, collections.abc.Mapping):
        value = typing.get_args(wanted)[1:]
        value = typing.get_origin(value[0]) or value[0] if value else None
        if getattr(value, "__module__", "").partition(".")[0] == "numpy":
            return "arrays"
    return "record"


def _given(hint):
    """Returns the class of one record in the annotation of a result: without None, lists and iterators."""
    arguments = [one for one in typing.get_args(hint) if one is not type(None)]
    origin = typing.get_origin(hint)
    if origin is not None and origin is not dict and arguments:
        return _given(arguments[0])
    return hint


def _columns(hint):
    """Returns the types by column of a class with annotated fields, None of anything else."""
    if not isinstance(hint, type) or not (typing.is_typeddict(hint) if hasattr(typing, "is_typeddict")
                                          else hasattr(hint, "__total__")) and not dataclasses.is_dataclass(hint):
        return None
    return {name: column(name, kind) for name, kind in typing.get_type_hints(hint).items()}


def column(name: str, hint):
    """Returns the type of a column that an annotation stands for."""
    arguments = [one for one in typing.get_args(hint) if one is not type(None)]
    if len(arguments) == 1 and typing.get_origin(hint) is not None:
        hint = arguments[0]
    if isinstance(hint, TensorType):
        return hint
    if hint in _NAMES:
        return _NAMES[hint]
    raise TypeError(f"column `{name}`: no type of a column corresponds to {hint!r}; write str, int, float, bool, "
                    "tidemill.Image, tidemill.Audio or tidemill.Tensor['float32', 2, 3]")
