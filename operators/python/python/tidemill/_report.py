"""What a run or a plan says of itself, as tables: text in a terminal, HTML in a notebook."""

import html
import os
import typing

Rows = typing.Sequence[typing.Sequence[typing.Any]]


class Table(typing.NamedTuple):
    """A table with a title."""

    title: str
    columns: typing.Sequence[str]
    rows: Rows

    def text(self) -> str:
        lines = [list(self.columns), *([shown(cell) for cell in row] for row in self.rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        written = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([self.title, *written])

    def html(self) -> str:
        def row(cells: typing.Iterable[typing.Any], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(shown(cell))}</{tag}>" for cell in cells) + "</tr>"
        body = "".join(row(cells, "td") for cells in self.rows)
        return f"<table><caption>{html.escape(self.title)}</caption>{row(self.columns, 'th')}{body}</table>"


def shown(value: typing.Any) -> str:
    """Writes a cell."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


class Answer:
    """An answer of the program: `document` is the whole of it, as it is printed with `--output json`."""

    title = "tidemill"

    def __init__(self, document: typing.Dict[str, typing.Any]):
        self.document = document

    def tables(self) -> typing.List[Table]:
        return []

    def headline(self) -> str:
        return self.title

    def __repr__(self) -> str:
        return "\n\n".join([self.headline(), *(table.text() for table in self.tables())])

    def _repr_html_(self) -> str:
        return f"<div><p><b>{html.escape(self.headline())}</b></p>{''.join(table.html() for table in self.tables())}</div>"

    def __getitem__(self, name: str) -> typing.Any:
        return self.document[name]


def _nested(document: typing.Any, *names: str) -> typing.Any:
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _list(document: typing.Dict[str, typing.Any], name: str) -> typing.List[typing.Dict[str, typing.Any]]:
    found = document.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


class Report(Answer):
    """The report of a run: what `tidemill run --output json` prints."""

    def headline(self) -> str:
        end = "complete" if self.document.get("complete") else "not complete"
        return f"{self.document.get('workflow', 'the workflow')}: {end}"

    @property
    def complete(self) -> bool:
        """Whether all records were read and processed."""
        return bool(self.document.get("complete"))

    @property
    def sinks(self) -> typing.List[typing.Dict[str, typing.Any]]:
        """Figures of each sink."""
        return _list(self.document, "sinks")

    @property
    def dead_letters(self) -> int:
        """Records that could not be processed."""
        return int(self.document.get("dead_letters", 0))

    def _letters(self) -> typing.Dict[str, int]:
        found: typing.Dict[str, int] = {}
        for stage in _list(self.document, "stages"):
            for reason, count in (stage.get("dead_letters") or {}).items():
                found[reason] = found.get(reason, 0) + count
        return found

    def tables(self) -> typing.List[Table]:
        sinks = [[one.get("sink"), one.get("records"), one.get("rate_per_second"), _nested(one, "latency", "p50_ms"),
                  _nested(one, "latency", "p99_ms"), one.get("accuracy_percent")] for one in self.sinks]
        tables = [Table("Results", ["sink", "records", "per second", "p50 ms", "p99 ms", "accuracy %"], sinks)]
        words = {True: "met", False: "missed", None: "no evidence"}
        levels = [[one.get("slo"), one.get("wanted"), one.get("measured"), words.get(one.get("met"))]
                  for one in _list(self.document, "slo")]
        if levels:
            tables.append(Table("Service levels", ["level", "goal", "measured", "verdict"], levels))
        letters = self._letters()
        if letters:
            tables.append(Table("Dead letters", ["reason", "records"], sorted(letters.items())))
        return tables


class Plan(Answer):
    """A plan with its costs: what `tidemill plan --output json` prints. `write` makes a file for `run(plan=...)`."""

    def __init__(self, document: typing.Dict[str, typing.Any], yaml: str):
        super().__init__(document)
        #: The plan itself, for `tidemill run --plan`.
        self.yaml = yaml

    def headline(self) -> str:
        return f"{self.document.get('workflow', 'the workflow')}: {self.status}, {shown(self.cost)} $/h"

    @property
    def status(self) -> str:
        """`optimal`, `feasible`, `time_limited`, `infeasible` or `not_found`."""
        return str(self.document.get("status"))

    @property
    def cost(self) -> typing.Optional[float]:
        """Price in $ per hour; None if there is no plan."""
        return typing.cast(typing.Optional[float], _nested(self.document, "cost", "total"))

    def write(self, path: typing.Union[str, "os.PathLike[str]"]) -> None:
        """Writes the plan to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.yaml)

    def tables(self) -> typing.List[Table]:
        cost = self.document.get("cost") or {}
        figures = [["cost $/h", cost.get("total")], ["of it compute", cost.get("compute")], ["of it network", cost.get("network")],
                   ["accuracy", self.document.get("accuracy")], ["rate /s", _nested(self.document, "rate", "wanted")],
                   ["rate up to /s", _nested(self.document, "rate", "up_to")], ["planning s", self.document.get("planning_seconds")]]
        tables = [Table("Plan", ["figure", "value"], [row for row in figures if row[1] is not None])]
        for name, title in (("variants", "Models"), ("workers", "Workers"), ("traffic", "Traffic")):
            found = _list(self.document, name)
            if found:
                plain = [key for key in found[0] if not isinstance(found[0][key], (dict, list))]
                tables.append(Table(title, plain, [[one.get(key) for key in plain] for one in found]))
        return tables
