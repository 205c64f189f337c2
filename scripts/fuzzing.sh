#!/usr/bin/env bash
# Has every parser that reads from outside read a million changed inputs, and writes docs/benchmarks/fuzzing.md and fuzzing.json.
# `scripts/fuzzing.sh frames plan` does these targets and keeps the figures of the others. TIDEMILL_MUTATIONS sets another number.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

export TIDEMILL_MUTATIONS=${TIDEMILL_MUTATIONS:-1000000}
build=(cargo test --locked --workspace --test fuzzing --no-run --message-format json)
program=$("${build[@]}" 2>/dev/null | python3 -c '
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == "fuzzing" and "test" in message["target"]["kind"]:
        print(message["executable"])
') || true
[ -n "$program" ] || stop "the tests do not build" "${build[*]}"

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
status=0
for test in $("$program" --list | sed -n 's/^\(mutated_[a-z_]*\): test$/\1/p'); do
  name=$(sed -n "s/^ *$test \"\(.*\)\"\$/\1/p" tests/fuzzing/tests/fuzzing.rs)
  if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
  begun=$SECONDS
  if nice -n 19 "$program" --exact "$test" --nocapture >"$lines.one" 2>&1; then
    line ok "$name ($(duration $((SECONDS - begun))))"
    grep -o 'fuzzed .*' "$lines.one" >>"$lines"
  else
    line '!!' "$name"
    tail -n 30 "$lines.one" >&2
    status=1
  fi
  rm -f "$lines.one"
done

scripts/machine-facts.sh >"$lines.facts"
python3 scripts/fuzzing_page.py "$lines" "$lines.facts"
rm -f "$lines.facts"
line ok "wrote docs/benchmarks/fuzzing.md"
exit $status
