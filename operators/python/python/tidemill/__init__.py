"""Tidemill in Python: runs workflows, and is what steps, sources and sinks in Python import.

Run a workflow from records to records::

    import tidemill
    for record in tidemill.run("workflow.yaml", inputs={"readings": [{"site": "hall", "celsius": 21.5}]}):
        print(record)

A step is a function that gets one record, a dictionary by column, and returns one, a list of them, or None::

    def fahrenheit(record):
        return {"site": record["site"], "degrees": record["celsius"] * 1.8 + 32}

A function whose parameter is annotated as `Batch` gets many records at once, by column::

    def fahrenheit(batch: tidemill.Batch):
        return {"site": batch["site"], "degrees": batch["celsius"].numpy() * 1.8 + 32}

See the pages "Tidemill in Python" and "A step in Python" of the documentation. `tidemill.testing` runs a step without the engine.
"""

import typing

from ._columns import Batch, Column, Image, Record
from ._types import Audio, Tensor

if typing.TYPE_CHECKING:
    from ._binary import Finding, WorkflowError
    from ._commands import plan, profile, validate
    from ._report import Answer, Plan, Report
    from ._run import Run, run

__all__ = ["Answer", "Audio", "Batch", "Column", "Finding", "Image", "Plan", "Record", "Report", "Run", "Tensor", "WorkflowError",
           "plan", "profile", "run", "validate"]
_LATER = {"Finding": "_binary", "WorkflowError": "_binary", "plan": "_commands", "profile": "_commands", "validate": "_commands",
          "Answer": "_report", "Plan": "_report", "Report": "_report", "Run": "_run", "run": "_run"}


def __getattr__(name: str) -> typing.Any:
    """Imports what runs workflows when it is used: the processes of steps do not need it."""
    if name not in _LATER:
        raise AttributeError(f"module 'tidemill' has no attribute {name!r}")
    import importlib
    try:
        return getattr(importlib.import_module(f"tidemill.{_LATER[name]}"), name)
    except ModuleNotFoundError as error:
        raise AttributeError(f"tidemill.{name} is not there in the process of a step, source or sink ({error})") from None
