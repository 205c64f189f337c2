"""Writes docs/benchmarks/fuzzing.md and fuzzing.json: from lines that tests tell (first file) and facts of the machine (second)."""
import json, pathlib, re, subprocess, sys

data, page = pathlib.Path("docs/benchmarks/fuzzing.json"), pathlib.Path("docs/benchmarks/fuzzing.md")
found = json.loads(data.read_text()) if data.exists() else {}
commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip() or "unknown"
pattern = re.compile(
    r"^fuzzed (\S+): (\d+) executions, (\d+) accepted, (\d+) refused, (\d+) bytes longest, (\d+) bytes of memory, (\d+) us slowest$")
for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
    name, *numbers = pattern.match(line).groups()
    keys = ["executions", "accepted", "refused", "longest_bytes", "memory_bytes", "slowest_microseconds"]
    found[name] = {**dict(zip(keys, map(int, numbers))), "commit": commit}
source = pathlib.Path("tests/fuzzing/src/targets.rs").read_text()
targets = dict(re.findall(r'name: "([^"]+)",\s+reads: "([^"]+)"', source))
found = {name: found[name] for name in targets if name in found}
constants = {name: int(of) for name, of in re.findall(r"const (\w+): usize = (\d+) << 20;", source)}
by_bound = {}
for name, bound in re.findall(r'name: "([^"]+)".*?memory: (\w+),', source, re.DOTALL):
    by_bound.setdefault(bound, []).append(f"`{name}`")
why = {"ARROW": "Arrow reserves up to 64 MiB on the word of a length", "NESTED": "each level of a nested message may claim 1 MiB, and there are 160 at most"}
bounds = f"{constants['MEMORY']} MiB" + "".join(
    f", {constants[bound]} MiB for {', '.join(names)} ({why[bound]})" for bound, names in by_bound.items() if bound != "MEMORY")
data.write_text(json.dumps(found, indent=1) + "\n")

def size(count):
    return f"{count / 1024:.0f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"

# The commit is told for each target: not all are measured at once.
facts = "\n".join(line for line in pathlib.Path(sys.argv[2]).read_text().strip().splitlines() if not line.startswith("| commit "))
rows = "\n".join(
    f"| `{name}` | {targets[name]} | {one['executions']} | {one['accepted']} | {one['refused']} | {one['longest_bytes']} | {size(one['memory_bytes'])} | {one['slowest_microseconds'] / 1000:.1f} ms | {one.get('commit', 'not noted')} |"
    for name, one in found.items())
page.write_text(f"""# Fuzzing of parsers

Written by `scripts/fuzzing.sh`. Everything that reads from outside is a target in `tests/fuzzing`: a function that is given bytes, says whether it
took them, and panics where a promise is broken (what is read can be told again, a path stays in its folder, a refusal has a text). The inputs are
the corpus in `tests/fuzz/corpus`, changed one to four times by a generator with a seed: bits, lengths and numbers at their edges, what is
missing, doubled, nested, or taken from another input. What has checksums is read twice, as it comes and with checksums made anew, as somebody
does who knows them.

An execution fails that panics, takes more than a second of processor time, or more memory than its bound beyond what was there before: {bounds}. One that does
not end at all ends the test, which tells the input. `make test` does a thousand changes of each target, `make test-long` a million.

Not all targets are measured at once: the machine below is that of the last ones, and each row has the commit that it was measured at.

| | |
|---|---|
{facts}

| target | reads | executions | taken | refused | longest input, bytes | most memory | longest execution | commit |
|---|---|--:|--:|--:|--:|--:|--:|---|
{rows}

"Taken" of frames, words and messages means that at least the first one was; what follows it was refused or taken as what it says. A target that is not in the table was not measured here yet.

## With a fuzzer

The same functions are programs for cargo-fuzz in `tests/fuzz/`, a workspace of its own, which looks where inputs lead and checks memory. It needs a nightly
compiler:

```console
$ cargo install cargo-fuzz
$ cargo +nightly fuzz run frames -- -max_total_time=600 -rss_limit_mb=2048
```

An input that fails goes into `tests/fuzz/corpus/TARGET/found-WHAT`, and is tried from then on by every test.
""")
