#!/usr/bin/env python3
"""Runs the workspace's tests, each in a process of its own, with a limit on each one's time.

    scripts/run_tests.py [--results FILE] [--match REGEX] [--ignored KIND]... [--limit SECONDS]
    scripts/run_tests.py --table FILE       # prints the slowest ten to stderr, "PASSED FAILED" to stdout

With cargo-nextest the tests run through it (.config/nextest.toml). Without it this script does the same
in a simpler way, because building nextest takes longer than building Tidemill: it asks cargo for the test
programs, asks these for their tests, and starts one process a test. A test function whose name starts
with `alone_` measures time or memory and runs while no other test does.

Ignored tests run with `--ignored` alone. KIND is the first word of the reason in `#[ignore = "REASON"]`: `long`, `models`. Without
`--match` no other tests run then. The reasons are read in the sources, because test programs do not list them.

A test that fails is run once more at the end, alone. If it passes then, it counts as passed and is listed under FLAKY: the machine was
busy, or the test or the product has a fault that comes and goes. When more than MOST_AGAIN tests fail, none is run again.

Exits 0 when all tests passed, 1 when one failed, 2 when none ran. Results are JSON: a list of
{"package", "name", "seconds", "passed", "skipped", "flaky"}. A test that lacks something on this machine prints a line `skipped: WHY` and
exits with 0; it counts neither as passed nor as failed.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
ALONE = re.compile(r"(^|::)alone_")
LONGEST = re.compile(r"::cli (deployment|cluster|controllers|chaos)")
SKIPPED = re.compile(r"^skipped: (.*)$", re.MULTILINE)
IGNORED = re.compile(r'#\[ignore = "(\w+)[^"]*"\]\s*(?:#\[[^\n]*\n\s*)*fn (\w+)')
MOST_AGAIN = 20
RUNNING = set()  # the test processes of the moment, to be killed when the user interrupts


def has_nextest():
    """Whether `cargo nextest` is there (and was not switched off, which is how we test the other way)."""
    if os.environ.get("TIDEMILL_NO_NEXTEST"):
        return False
    call = subprocess.run([CARGO, "nextest", "--version"], cwd=ROOT, capture_output=True)
    return call.returncode == 0


def at_a_time():
    """Tests that run at a time: half as many again as there are cores, since many wait for something most of the time."""
    cores = os.cpu_count()
    return cores + cores // 2


@functools.cache
def ignored_in(folder, kinds):
    """Names of the test functions in the package of a folder that are ignored for a reason of these kinds."""
    files = [path for part in ("src", "tests") for path in (folder / part).rglob("*.rs")]
    return {name for path in files for kind, name in IGNORED.findall(path.read_text()) if kind in kinds}


def run_nextest(pattern, kinds, limit):
    """Runs the tests whose names match, and the ignored ones of these kinds, through nextest."""
    results = []
    if pattern or not kinds:
        results += nextest(f"test(/{pattern}/)" if pattern else "all()", limit, at_a_time())
    command = [CARGO, "metadata", "--format-version", "1", "--no-deps", "--locked"]
    packages = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)["packages"]
    chosen = [(package["name"], ignored_in(pathlib.Path(package["manifest_path"]).parent, kinds)) for package in packages]
    which = [f"(package(={name}) and test(/(^|::)({'|'.join(sorted(tests))})$/))" for name, tests in chosen if tests]
    if which:
        results += nextest(" or ".join(which), limit, at_a_time(), "ignored-only")
    return results


def again_nextest(failed, limit):
    """Runs the tests that failed once more, one at a time."""
    each = (f"(binary_id(={test['package']}) and test(={test['name']}))" for test in failed)
    return nextest(" or ".join(each), limit, 1, "all")


def nextest(which, limit, threads, ignored="default"):
    """Runs tests through nextest and reads the results from the JUnit file that it writes."""
    profile = "default" if limit <= 60 else "long"
    junit = ROOT / "target" / "nextest" / profile / "junit.xml"
    junit.unlink(missing_ok=True)
    command = [CARGO, "nextest", "run", "--workspace", "--locked", "--profile", profile]
    command += ["--test-threads", str(threads), "--run-ignored", ignored, "-E", which]
    # nextest is silent about tests that pass and prints those that fail in full, at the end.
    subprocess.run(command, cwd=ROOT)
    if not junit.exists():
        return []
    results = []
    for suite in xml.etree.ElementTree.parse(junit).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            failed = case.find("failure") is not None or case.find("error") is not None
            results.append({
                "package": suite.get("name"),
                "name": case.get("name"),
                "seconds": float(case.get("time", 0)),
                "passed": not failed,
                "skipped": None if failed else why_skipped(case.findtext("system-err") or ""),
                "flaky": False,
            })
    return results


def why_skipped(output):
    """What a test lacked; none: it was not skipped."""
    found = SKIPPED.search(output)
    return found.group(1) if found else None


def test_programs():
    """The workspace's test programs: (package, program, folder of the package), built where need be."""
    command = [CARGO, "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"]
    build = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if build.returncode != 0:
        sys.exit(2)
    programs = []
    for line in build.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        folder = pathlib.Path(message["manifest_path"]).parent
        target = message["target"]["name"].replace("_", "-")
        package = package_of(message["package_id"], folder)
        programs.append((package if target == package else f"{package}::{target}", message["executable"], folder))
    return programs


def package_of(package_id, folder):
    """The package's name out of `path+file:///folder#name@1.0.0`, where the name is left out if it is the folder's."""
    fragment = package_id.rsplit("#", 1)[-1]
    return fragment.split("@")[0] if "@" in fragment else folder.name


def tests_of(program, folder):
    """A program's tests: the name of each, and whether it is ignored."""
    def listed(*arguments):
        call = subprocess.run([program, "--list", "--format", "terse", *arguments], cwd=folder,
                              capture_output=True, text=True, check=True)
        return [line[: -len(": test")] for line in call.stdout.splitlines() if line.endswith(": test")]

    ignored = set(listed("--ignored"))
    return [(name, name in ignored) for name in listed()]


def kill(child):
    """Kills a test and all that it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_one(package, program, folder, name, limit):
    """Runs one test. What it printed is shown only when it fails."""
    environment = dict(os.environ, CARGO=CARGO, CARGO_MANIFEST_DIR=str(folder))
    start = time.monotonic()
    # A session of its own: what the test started is stopped with it, and cannot keep the pipe open.
    child = subprocess.Popen([program, "--exact", name, "--include-ignored", "--nocapture"], cwd=folder,
                             env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    RUNNING.add(child)
    try:
        output, _ = child.communicate(timeout=limit)
        passed = child.returncode == 0
    except subprocess.TimeoutExpired:
        kill(child)
        output, _ = child.communicate()
        passed, output = False, output + f"\nstopped: it ran longer than {limit} s\n".encode()
    RUNNING.discard(child)
    seconds = time.monotonic() - start
    if not passed:
        print(f"FAIL  {package} {name} ({seconds:.1f} s)\n{output.decode(errors='replace')}", flush=True)
    skipped = why_skipped(output.decode(errors="replace")) if passed else None
    return {"package": package, "name": name, "seconds": seconds, "passed": passed, "skipped": skipped, "flaky": False}


def work_of(matches, limit):
    """The arguments of `run_one` for each test that `matches(package, folder, name, whether it is ignored)`."""
    return [
        (package, program, folder, name, limit * (3 if name.startswith("deployment::") else 1))
        for package, program, folder in test_programs()
        for name, is_ignored in tests_of(program, folder)
        if matches(package, folder, name, is_ignored)
    ]


def run_plain(pattern, kinds, limit):
    """Runs every test in a process of its own, as many at a time as `at_a_time` says."""
    def matches(_, folder, name, is_ignored):
        if is_ignored:
            return name.rsplit("::", 1)[-1] in ignored_in(folder, kinds)
        return re.search(pattern, name) if pattern else not kinds

    work = work_of(matches, limit)
    together = [test for test in work if not ALONE.search(test[3])]
    # The longest come first, so that no processor waits for one of them at the end.
    together.sort(key=lambda test: not LONGEST.search(f"{test[0]} {test[3]}"))
    alone = [test for test in work if ALONE.search(test[3])]
    print(f"{len(work)} tests", flush=True)
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=at_a_time())  # no `with`: that waits at an interrupt
    results = list(pool.map(lambda test: run_one(*test), together))
    return results + [run_one(*test) for test in alone]


def again_plain(failed, limit):
    """Runs the tests that failed once more, one at a time."""
    names = {(test["package"], test["name"]) for test in failed}
    return [run_one(*test) for test in work_of(lambda package, _, name, __: (package, name) in names, limit)]


def look_again(results, again, limit):
    """Runs the tests that failed once more; those that pass are flaky."""
    failed = [test for test in results if not test["passed"]]
    if not failed or len(failed) > MOST_AGAIN:
        return
    print(f"{len(failed)} failed: each runs once more, alone", flush=True)
    passed = {(test["package"], test["name"]) for test in again(failed, limit) if test["passed"]}
    for test in failed:
        test["passed"] = test["flaky"] = (test["package"], test["name"]) in passed


def table(results):
    """Prints the ten slowest tests."""
    slowest = sorted(results, key=lambda test: -test["seconds"])[:10]
    for test in slowest:
        mark = "" if test["passed"] else "   FAILED"
        print(f"{test['seconds']:8.2f} s  {test['package']}  {test['name']}{mark}", file=sys.stderr)
    for why in sorted({test["skipped"] for test in results if test.get("skipped")}):
        count = sum(test.get("skipped") == why for test in results)
        print(f"{count:8} skipped: {why}", file=sys.stderr)
    flaky = [test for test in results if test.get("flaky")]
    if flaky:
        print("FLAKY: these failed once and passed when they ran alone", file=sys.stderr)
    for test in flaky:
        print(f"         {test['package']}  {test['name']}", file=sys.stderr)
    total = sum(test["seconds"] for test in results)
    print(f"{total:8.2f} s  sum over all {len(results)} tests", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, help="write the results to this file")
    parser.add_argument("--match", help="only tests whose name matches this regular expression")
    parser.add_argument("--ignored", metavar="KIND", action="append", default=[],
                        help="also tests that are ignored for a reason of this kind")
    parser.add_argument("--limit", type=int, default=60, help="seconds that one test may take")
    parser.add_argument("--table", type=pathlib.Path, help="print the table of a results file and do nothing else")
    arguments = parser.parse_args()

    if arguments.table:
        results = json.loads(arguments.table.read_text())
        table(results)
        failed = sum(not test["passed"] for test in results)
        skipped = sum(bool(test.get("skipped")) for test in results)
        print(len(results) - failed - skipped, failed)
        return 0

    run, again = (run_nextest, again_nextest) if has_nextest() else (run_plain, again_plain)
    results = run(arguments.match, frozenset(arguments.ignored), arguments.limit)
    look_again(results, again, arguments.limit)
    if not results:
        print("no test ran", file=sys.stderr)
        return 2
    failed = [test for test in results if not test["passed"]]
    skipped = sum(bool(test["skipped"]) for test in results)
    print(f"{len(results) - len(failed) - skipped} tests passed, {len(failed)} failed, {skipped} skipped", flush=True)
    for test in failed:
        print(f"  FAILED  {test['package']} {test['name']}", flush=True)
    if arguments.results:
        arguments.results.write_text(json.dumps(results, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        for running in list(RUNNING):
            kill(running)
        os._exit(130)
