"""A step of a Tidemill workflow in Python.

A function gets one record, a dictionary by column, and returns one, a list of them, or None::

    def fahrenheit(record):
        return {"site": record["site"], "degrees": record["celsius"] * 1.8 + 32}

A function whose parameter is annotated as `Batch` gets many records at once, by column::

    def fahrenheit(batch: tidemill.Batch):
        return {"site": batch["site"], "degrees": batch["celsius"].numpy() * 1.8 + 32}

See the page "A step in Python" of the documentation. `tidemill.testing` runs a step without the engine.
"""

from ._columns import Batch, Column, Image, Record
from ._types import Audio, Tensor

__all__ = ["Audio", "Batch", "Column", "Image", "Record", "Tensor"]
