#!/usr/bin/env bash
# The long versions of the tests that can look at more than `make test` has time for: 10^6 mutated
# inputs, 2000 rounds of chaos, 10^5 planning problems. Writes docs/benchmarks/test-long.md. Takes up to hours.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

export TIDEMILL_MUTATIONS=${TIDEMILL_MUTATIONS:-1000000}
export TIDEMILL_CHAOS_ROUNDS=${TIDEMILL_CHAOS_ROUNDS:-2000}
export TIDEMILL_PLANNING_CASES=${TIDEMILL_PLANNING_CASES:-100000}
match='(^|::)(chaos_|recovery_|agreement::)|mutat'
results=target/test-long-results.json
report=docs/benchmarks/test-long.md

rm -f "$results"
start=$SECONDS
status=0
python3 scripts/run_tests.py --match "$match" --limit 3600 --results "$results" || status=$?
# What needs models that somebody fetched fails where they are not, and says how to get them.
heard='**failed**'
before_fetched=$SECONDS
if cargo test --locked -q -p tidemill-inference --test sequence -- --ignored; then heard=passed; else status=1; fi
fetched_took=$((SECONDS - before_fetched))
took=$((SECONDS - start))
[ -f "$results" ] || stop "no result: the tests did not build, or none has a name that matches $match"

mkdir -p "$(dirname "$report")"
{
  cat <<HEAD
# Long tests

Written by \`make test-long\`; run before an issue is closed. The same tests as in \`make test\`, with more rounds.

| | |
|---|---|
| date | $(date -u +%Y-%m-%d) |
$(scripts/machine-facts.sh)
| command | \`TIDEMILL_MUTATIONS=$TIDEMILL_MUTATIONS TIDEMILL_CHAOS_ROUNDS=$TIDEMILL_CHAOS_ROUNDS TIDEMILL_PLANNING_CASES=$TIDEMILL_PLANNING_CASES make test-long\` |
| wall time | $(duration $took) |

| test | result | seconds |
|---|---|---|
HEAD
  python3 - "$results" <<'PYTHON'
import json, sys

for test in sorted(json.load(open(sys.argv[1])), key=lambda test: (test["package"], test["name"])):
    result = "passed" if test["passed"] else "**failed**"
    print(f"| `{test['package']}` {test['name']} | {result} | {test['seconds']:.1f} |")
PYTHON
  echo "| \`tidemill-inference::sequence\` the ignored ones, with fetched models | $heard | $fetched_took |"
} >"$report"
line ok "wrote $report"
exit $status
