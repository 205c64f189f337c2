#!/usr/bin/env bash
# The long versions of the tests that can look at more than `make test` has time for: 10^6 mutated
# inputs, 2000 rounds of chaos, 10^5 planning problems, 5000 workflows with the plans of all planners, 10^4 damaged states, the operator tests of the ONNX standard; and tests with programs that other machines lack: Prometheus, a browser, Compose,
# systemd-analyze, kubernetes-validate. As root it installs these from Debian's packages; those that it cannot have are told, and what needs them
# counts as skipped. Writes docs/benchmarks/test-long.md. Takes up to hours.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

export TIDEMILL_MUTATIONS=${TIDEMILL_MUTATIONS:-1000000}
export TIDEMILL_CHAOS_ROUNDS=${TIDEMILL_CHAOS_ROUNDS:-2000}
export TIDEMILL_PLANNING_CASES=${TIDEMILL_PLANNING_CASES:-100000}
export TIDEMILL_PLANNED_RUNS=${TIDEMILL_PLANNED_RUNS:-5000}
export TIDEMILL_DAMAGES=${TIDEMILL_DAMAGES:-10000}
match='(^|::)(chaos_|recovery_|agreement::|planned_runs_of_the_)|mutat|^(programs|monitoring|dashboards|cluster_page|deployment|elastic)::'
results=target/test-long-results.json
report=docs/benchmarks/test-long.md

# Programs that tests use where they are.
packages=()
wants() { command -v "$1" >/dev/null || packages+=("${@:2}"); }
wants prometheus prometheus
wants chromedriver chromium chromium-driver
wants docker-compose docker-compose
wants systemd-analyze systemd
if [ ${#packages[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    line get "${packages[*]}"
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"; } >/dev/null 2>&1 ||
      line '!!' "apt-get cannot install ${packages[*]}: what needs them is skipped"
  else
    line '!!' "not on this machine, and what needs them is skipped: apt-get install ${packages[*]}"
  fi
fi
if ! command -v kubernetes-validate >/dev/null && [ -z "${KUBERNETES_VALIDATE:-}" ]; then
  if python3 -m venv .tidemill/kubernetes >/dev/null 2>&1 && .tidemill/kubernetes/bin/pip install -q kubernetes-validate >/dev/null 2>&1; then
    export KUBERNETES_VALIDATE=$PWD/.tidemill/kubernetes/bin/kubernetes-validate
  else
    line '!!' "kubernetes-validate cannot be had: the check of manifests is skipped"
  fi
fi

rm -f "$results"
start=$SECONDS
status=0
python3 scripts/run_tests.py --match "$match" --limit 3600 --results "$results" || status=$?
# What needs models that somebody fetched fails where they are not, and says how to get them.
heard='**failed**'
before_fetched=$SECONDS
if cargo test --locked -q -p tidemill-inference --test inference sequence:: -- --ignored; then heard=passed; else status=1; fi
fetched_took=$((SECONDS - before_fetched))
read='**failed**'
before_read=$SECONDS
if cargo test --locked -q -p tidemill --test cli -- --ignored --exact examples::receipts_are_read_with_few_errors; then
  read=passed
else
  status=1
fi
read_took=$((SECONDS - before_read))
# Those that take minutes.
minutes='**failed**'
before_minutes=$SECONDS
if cargo test --locked -q -p tidemill --test cli -- --ignored storage:: buckets:: cluster_random_plans:: cluster_cut::; then minutes=passed; else status=1; fi
minutes_took=$((SECONDS - before_minutes))
# What needs an S3 server that verifies signatures is skipped where none can be had.
scripts/s3_server.sh || line -- "no S3 server: tests of signatures are skipped"
signed='**failed**'
before_signed=$SECONDS
if told=$(cargo test --locked -q -p tidemill-bucket --test bucket signatures:: -- --nocapture 2>&1); then
  signed=passed
  if why=$(grep -m 1 -o 'skipped: .*' <<<"$told"); then signed=$why; fi
else
  printf '%s\n' "$told"
  status=1
fi
signed_took=$((SECONDS - before_signed))
# What the backends compute against what the standard says.
standard='**failed**'
before_standard=$SECONDS
if scripts/onnx_operator_tests.sh; then standard=passed; else status=1; fi
standard_took=$((SECONDS - before_standard))
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
    result = f"skipped: {test['skipped']}" if test.get("skipped") else "passed" if test["passed"] else "**failed**"
    print(f"| `{test['package']}` {test['name']} | {result} | {test['seconds']:.1f} |")
PYTHON
  echo "| \`tidemill-inference::sequence\` the ignored ones, with fetched models | $heard | $fetched_took |"
  echo "| \`tidemill::cli\` the ignored ones of storage, buckets, cluster_random_plans, cluster_cut | $minutes | $minutes_took |"
  echo "| \`tidemill::cli\` examples::receipts_are_read_with_few_errors, with fetched models | $read | $read_took |"
  echo "| \`tidemill-bucket::signatures\` against a server that verifies signatures | $signed | $signed_took |"
  echo "| \`tidemill-inference::onnx_operators\` the operator tests of the ONNX standard on every backend | $standard | $standard_took |"
} >"$report"
line ok "wrote $report"
exit $status
