"""Checks, plans and measures workflows: the verbs of the program, with answers as objects."""

import os
import tempfile
import typing

from . import _binary
from ._binary import Finding, Workflow
from ._report import Answer, Plan

Path = typing.Union[str, "os.PathLike[str]"]
Paths = typing.Union[Path, typing.Sequence[Path]]


def _paths(name: str, given: typing.Optional[Paths]) -> typing.List[str]:
    if given is None:
        return []
    many = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    return [name, *(os.fspath(one) for one in many)]


def validate(workflow: Workflow, *, without_files: bool = False) -> typing.List[Finding]:
    """Checks a workflow and runs nothing; returns what is wrong, nothing if it is well."""
    answer = _binary.call(["validate", "-", *(["--without-files"] if without_files else [])], workflow, (0, 78))
    return _binary.findings_of(answer)


def plan(workflow: Workflow, infrastructure: Path, profiles: typing.Optional[Paths] = None, *,
         slo: typing.Sequence[str] = (), arguments: typing.Sequence[str] = ()) -> Plan:
    """Plans a workflow: variants, machines and routes at the least cost.

    Where no plan keeps the levels, `status` of the result says so and `yaml` is empty. `profiles` are files that `profile` wrote, `slo` service levels such as `latency=p99:800ms`, `arguments` further options of
    `tidemill plan`.
    """
    options = ["--infra", os.fspath(infrastructure), *_paths("--profiles", profiles)]
    for level in slo:
        options += ["--slo", level]
    with tempfile.TemporaryDirectory(prefix="tidemill-") as folder:
        out = os.path.join(folder, "plan.yaml")
        answer = _binary.call(["plan", "-", *options, "--out", out, *arguments], workflow, (0, 1))
        if not os.path.exists(out):
            return Plan(answer, "")
        with open(out, encoding="utf-8") as file:
            return Plan(answer, file.read())


def profile(workflow: Workflow, out: typing.Optional[Path] = None, *, arguments: typing.Sequence[str] = ()) -> Answer:
    """Measures the operators of a workflow on this machine; `out` is a folder or file for the profile."""
    with tempfile.TemporaryDirectory(prefix="tidemill-") as folder:
        target = os.fspath(out) if out is not None else os.path.join(folder, "profile.yaml")
        return Answer(_binary.call(["profile", "-", "--out", target, *arguments], workflow))
