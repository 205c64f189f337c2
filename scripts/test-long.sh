#!/usr/bin/env bash
# The tests that `make test` has no time for:
# - tests that are ignored because they take long, or need fetched models
# - more of what other tests look at: 10^6 mutated inputs, 2000 rounds of chaos, 10^5 planning problems, 5000 workflows with the plans
#   of all planners, 10^4 damaged states, eight times the cases of the properties among them
# - tests with programs that other machines lack: Prometheus, a browser, Compose, systemd-analyze, kubernetes-validate, an S3 server
# - the operator tests of the ONNX standard
# As root it installs the programs from Debian's packages. It names the programs that it cannot install; tests that need them count as
# skipped. Writes docs/benchmarks/test-long.md. Takes hours.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

export TIDEMILL_MUTATIONS=${TIDEMILL_MUTATIONS:-1000000}
export TIDEMILL_CHAOS_ROUNDS=${TIDEMILL_CHAOS_ROUNDS:-2000}
export TIDEMILL_PLANNING_CASES=${TIDEMILL_PLANNING_CASES:-100000}
export TIDEMILL_PLANNED_RUNS=${TIDEMILL_PLANNED_RUNS:-5000}
export TIDEMILL_DAMAGES=${TIDEMILL_DAMAGES:-10000}
export TIDEMILL_SEEKS=${TIDEMILL_SEEKS:-all}
export PROPTEST_CASES=${PROPTEST_CASES:-2048}
# Tests that read these, by their names and by the names of their modules; and tests with other programs.
match='(^|::)(chaos_|recovery_|planned_runs_of_)|mutat|_late_or_corrected$'
match+='|(^|::)(agreement|sizes|detectors|determinism|survival_tests)::|sources::video::tests::'
match+='|^(programs|monitoring|dashboards|cluster_page|deployment|elastic|signatures)::'
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
    line '!!' "kubernetes-validate is not available: the check of manifests is skipped"
  fi
fi
scripts/s3_server.sh || line -- "no S3 server: tests of signatures are skipped"

rm -f "$results"
start=$SECONDS
status=0
# Tests of models fail without the models, and print the command that fetches them.
python3 scripts/run_tests.py --match "$match" --ignored long --ignored models --limit 3600 --results "$results" || status=$?
# What the backends compute against what the standard says.
standard='**failed**'
before_standard=$SECONDS
if scripts/onnx_operator_tests.sh; then standard=passed; else status=1; fi
standard_took=$((SECONDS - before_standard))
took=$((SECONDS - start))
[ -f "$results" ] || stop "no result: the tests did not build"

mkdir -p "$(dirname "$report")"
{
  cat <<HEAD
# Long tests

Written by \`make test-long\`; run before an issue is closed. The tests that \`make test\` leaves out, and some of its tests with more
rounds.

| | |
|---|---|
| date | $(date -u +%Y-%m-%d) |
$(scripts/machine-facts.sh)
| command | \`TIDEMILL_MUTATIONS=$TIDEMILL_MUTATIONS TIDEMILL_CHAOS_ROUNDS=$TIDEMILL_CHAOS_ROUNDS TIDEMILL_PLANNING_CASES=$TIDEMILL_PLANNING_CASES TIDEMILL_PLANNED_RUNS=$TIDEMILL_PLANNED_RUNS TIDEMILL_DAMAGES=$TIDEMILL_DAMAGES PROPTEST_CASES=$PROPTEST_CASES make test-long\` |
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
  echo "| \`tidemill-inference::onnx_operators\` the operator tests of the ONNX standard on every backend | $standard | $standard_took |"
} >"$report"
line ok "wrote $report"
exit $status
