"""The program `tidemill`: where it is, and how it is started."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import typing


class Finding(typing.NamedTuple):
    """What is wrong, and where."""

    code: typing.Optional[str]
    severity: str
    message: str
    file: typing.Optional[str]
    line: typing.Optional[int]
    column: typing.Optional[int]
    help: typing.Optional[str]

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        code = f"[{self.code}]" if self.code else ""
        lines = [f"{self.severity}{code}: {self.message}"]
        lines += [f"  --> {place}"] if place else []
        lines += [f"  help: {self.help}"] if self.help else []
        return "\n".join(lines)


class WorkflowError(Exception):
    """A workflow cannot be run, planned or measured; `findings` say why and where."""

    def __init__(self, findings: typing.Sequence[Finding], log: str = ""):
        self.findings: typing.List[Finding] = list(findings)
        self.log = log
        super().__init__("\n".join(map(str, self.findings)) or log or "the command failed without a word")


def findings_of(document: typing.Any) -> typing.List[Finding]:
    """Reads the findings of an answer in JSON."""
    if not isinstance(document, dict):
        return []
    found = [*document.get("findings", []), *(one for file in document.get("files", []) for one in file.get("findings", []))]
    return [Finding._make(one.get(name) for name in Finding._fields) for one in found if isinstance(one, dict)]


def program() -> str:
    """Returns the path of the program: `TIDEMILL_PROGRAM`, that of this environment, or the first of `PATH`."""
    named = os.environ.get("TIDEMILL_PROGRAM")
    if named:
        return named
    scripts = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    scripts += [sysconfig.get_path("scripts", scheme) for scheme in ("posix_user",) if scheme in sysconfig.get_scheme_names()]
    for folder in scripts:
        path = os.path.join(folder, "tidemill")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("tidemill")
    if found is None:
        raise FileNotFoundError("the program `tidemill` is neither in this environment nor in PATH: install the wheel with pip, "
                                "or set TIDEMILL_PROGRAM to it")
    return found


Workflow = typing.Union[str, "os.PathLike[str]", typing.Mapping[str, typing.Any]]


def text_of(workflow: Workflow) -> typing.Optional[bytes]:
    """Returns the text of a workflow that is no file: YAML, or a dictionary as JSON, which YAML includes."""
    if isinstance(workflow, str):
        return workflow.encode() if "\n" in workflow else None
    if isinstance(workflow, os.PathLike):
        return None
    return json.dumps(workflow).encode()


def memory(name: str, content: bytes = b"") -> typing.IO[bytes]:
    """Returns a file in memory, at its beginning."""
    file = os.fdopen(os.memfd_create(name), "w+b")
    file.write(content)
    file.seek(0)
    return file


class Input:
    """The argument that names a workflow, and standard input, where its text is if it is no file."""

    def __init__(self, workflow: Workflow):
        text = text_of(workflow)
        self.argument = "-" if text is not None else os.fspath(workflow)  # type: ignore[arg-type]
        self.stdin = memory("tidemill-workflow", text or b"")

    def __enter__(self) -> "Input":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdin.close()


def environment() -> typing.Dict[str, str]:
    """Steps run with the interpreter of the caller, unless the workflow names another one."""
    return {"TIDEMILL_PYTHON": sys.executable, **os.environ}


def call(arguments: typing.Sequence[str], workflow: typing.Optional[Workflow] = None,
         accepted: typing.Container[int] = (0,)) -> typing.Any:
    """Runs the program with `--output json` and returns its answer; `-` among the arguments is the workflow.

    Ctrl-C ends the program too.
    """
    with Input(workflow if workflow is not None else "") as given:
        command = [program(), *(given.argument if one == "-" else one for one in arguments), "--output", "json"]
        child = subprocess.Popen(command, stdin=given.stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=environment(), start_new_session=True)
        try:
            out, log = child.communicate()
        except BaseException:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            raise
    words = log.decode(errors="replace").strip()
    try:
        answer = json.loads(out) if out.strip() else {}
    except ValueError:
        answer = {}
    if child.returncode not in accepted:
        raise WorkflowError(findings_of(answer), words)
    return answer
