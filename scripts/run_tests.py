#!/usr/bin/env python3
"""Runs the workspace's tests, each in a process of its own, with a limit on each one's time.

    scripts/run_tests.py [--results FILE] [--match REGEX] [--limit SECONDS]
    scripts/run_tests.py --table FILE       # prints the slowest ten to stderr, "PASSED FAILED" to stdout

With cargo-nextest the tests run through it (.config/nextest.toml). Without it this script does the same
in a simpler way, because building nextest takes longer than building Tidemill: it asks cargo for the test
programs, asks these for their tests, and starts one process a test. A test function whose name starts
with `alone_` measures time or memory and runs while no other test does.

A test of processes, hosts and clusters that fails is tried once more: what the machine does beside it can make one fail. It counts as
passed if it passes then, and the table names it: one that is named again and again has a fault. Tests that look for lost or doubled
rows are not tried again.

Exits 0 when all tests passed, 1 when one failed, 2 when none ran. Results are JSON: a list of
{"package", "name", "seconds", "passed", "skipped", "again"}. A test that finds that the machine lacks what it needs prints a line
`skipped: WHY` and ends well; it counts neither as passed nor as failed.
"""

import argparse
import concurrent.futures
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
SKIPPED = re.compile(r"^skipped: (.*)$", re.MULTILINE)
# What .config/nextest.toml says of the tests that are tried once more: those of some packages, but for some of them.
AGAIN = next(line for line in (ROOT / ".config/nextest.toml").read_text().splitlines() if line.startswith("filter") and "package(" in line)
TRIED_AGAIN = set(re.findall(r"package\(([\w-]+)\)", AGAIN))
TRIED_ONCE = re.compile("|".join(re.findall(r"not test\(/(.*?)/\)", AGAIN)))
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


def run_nextest(pattern, limit):
    """Runs through nextest and reads the results from the JUnit file that it writes."""
    profile = "default" if limit <= 60 else "long"
    junit = ROOT / "target" / "nextest" / profile / "junit.xml"
    junit.unlink(missing_ok=True)
    command = [CARGO, "nextest", "run", "--workspace", "--locked", "--profile", profile]
    command += ["--test-threads", str(at_a_time())]
    if pattern:
        command += ["-E", f"test(/{pattern}/)"]
    # nextest is silent about tests that pass and tells those that fail in full, at the end.
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
                "again": case.find("flakyFailure") is not None or case.find("flakyError") is not None,
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
    """The names of a program's tests, without the ignored ones."""
    def listed(*arguments):
        call = subprocess.run([program, "--list", "--format", "terse", *arguments], cwd=folder,
                              capture_output=True, text=True, check=True)
        return [line[: -len(": test")] for line in call.stdout.splitlines() if line.endswith(": test")]

    ignored = set(listed("--ignored"))
    return [name for name in listed() if name not in ignored]


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
    child = subprocess.Popen([program, "--exact", name, "--nocapture"], cwd=folder, env=environment,
                             start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
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
    return {"package": package, "name": name, "seconds": seconds, "passed": passed, "skipped": skipped, "again": False}


def run_once_or_twice(package, program, folder, name, limit):
    """Runs a test, once more if it fails and others may be to blame for that."""
    result = run_one(package, program, folder, name, limit)
    if result["passed"] or package.split("::")[0] not in TRIED_AGAIN or TRIED_ONCE.search(name):
        return result
    return dict(run_one(package, program, folder, name, limit), again=True)


def run_plain(pattern, limit):
    """Runs every test in a process of its own, as many at a time as `at_a_time` says."""
    work = [
        (package, program, folder, name, limit * (3 if name.startswith("deployment::") else 1))
        for package, program, folder in test_programs()
        for name in tests_of(program, folder)
        if not pattern or re.search(pattern, name)
    ]
    together = [test for test in work if not ALONE.search(test[3])]
    alone = [test for test in work if ALONE.search(test[3])]
    print(f"{len(work)} tests", flush=True)
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=at_a_time())  # no `with`: that waits at an interrupt
    results = list(pool.map(lambda test: run_once_or_twice(*test), together))
    return results + [run_once_or_twice(*test) for test in alone]


def table(results):
    """Prints the ten slowest tests."""
    slowest = sorted(results, key=lambda test: -test["seconds"])[:10]
    for test in slowest:
        mark = "" if test["passed"] else "   FAILED"
        print(f"{test['seconds']:8.2f} s  {test['package']}  {test['name']}{mark}", file=sys.stderr)
    for why in sorted({test["skipped"] for test in results if test.get("skipped")}):
        count = sum(test.get("skipped") == why for test in results)
        print(f"{count:8} skipped: {why}", file=sys.stderr)
    for test in results:
        if test.get("again") and test["passed"]:
            print(f"         passed only when it was tried once more: {test['package']}  {test['name']}", file=sys.stderr)
    total = sum(test["seconds"] for test in results)
    print(f"{total:8.2f} s  sum over all {len(results)} tests", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, help="write the results to this file")
    parser.add_argument("--match", help="only tests whose name matches this regular expression")
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

    run = run_nextest if has_nextest() else run_plain
    results = run(arguments.match, arguments.limit)
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
