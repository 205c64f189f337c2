"""A source: a generator function, or an object that can be iterated, with `position` and `seek` if it can be read again."""

import json

from . import _declared, _step, _types
from ._channel import VERSION
from ._feed import Feed, Feeding


class Source(Feeding):
    """Gives the records of a generator or an object of the user."""

    object = None

    def start(self, hello: dict) -> dict:
        self.greet(hello)
        target = _step.target(hello)
        arguments = hello.get("arguments") or {}
        if isinstance(target, type):
            self.object = target(**arguments)
            if not hasattr(self.object, "__iter__"):
                raise TypeError(f"the class {target.__qualname__} has no `__iter__`: it yields the records")
            function = self.object.__iter__
        else:
            def function():
                return iter(target(**arguments))
        declared, self.batch = _declared.of_source(self.object.__iter__ if self.object is not None else target, hello["batch"])
        output = declared
        if hello["output"] is not None:
            output = {name: _types.parse(kind) for name, kind in hello["output"]}
        wanted = [callable(getattr(self.object, name, None)) for name in ("position", "seek")]
        if any(wanted) and not all(wanted):
            raise TypeError(f"{target.__qualname__} has only one of `position` and `seek`: to be read again it needs both")
        self.function, self.has_position = function, all(wanted)
        self.declare(output or {})
        return {"version": VERSION, "has_position": self.has_position,
                "output": None if declared is None else [[name, str(kind)] for name, kind in declared.items()]}

    def begin(self) -> None:
        position = self.place if self.has_position else None
        self.feed = Feed(self.function(), self.output, self.batch, position)
        super().begin()

    def place(self) -> str:
        return json.dumps(self.object.position())

    def seek(self, position: str) -> None:
        self.object.seek(json.loads(position))
