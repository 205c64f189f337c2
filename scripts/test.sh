#!/usr/bin/env bash
# Everything that must hold before a change lands: format, clippy, and the tests (unit, property,
# end-to-end, doc; dependency direction and file rules are tests of the package `tidemill-tests`).
# scripts/test-long.sh runs the tests that are ignored here.
# Every step runs even when an earlier one fails. The last line is "N passed, N failed".
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

exec 2>&1 # one stream, so that the last line is the last
passed=0
failed=0
start=$SECONDS
slow=480 # seconds that all tests may take after the build

# One check of the whole tree: counts as one test.
check() {
  title "$1"
  shift
  local from=$SECONDS
  if "$@"; then
    passed=$((passed + 1))
    line ok "$(duration $((SECONDS - from)))"
  else
    failed=$((failed + 1))
    line '!!' "failed: $*"
  fi
}

check "Format" cargo fmt --all --check
check "Clippy" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

title "Build of the tests"
from=$SECONDS
results=target/test-results.json
rm -f "$results"
if cargo test --workspace --locked --no-run --quiet; then
  line ok "$(duration $((SECONDS - from)))"
  tests_from=$SECONDS
  title "Tests"
  python3 scripts/run_tests.py --results "$results" || true # the results are counted below

  title "Documentation tests"
  log=target/doc-tests.log
  if cargo test --doc --workspace --locked --no-fail-fast >"$log" 2>&1; then
    line ok "$(awk '/^test result:/ {n += $4} END {print n + 0}' "$log") documentation tests"
  else
    cat "$log"
    # The build of the documentation failed when no test is to blame.
    grep -q '^test result:.* [1-9][0-9]* failed' "$log" || failed=$((failed + 1))
  fi
  read -r p f < <(awk '/^test result:/ {p += $4; f += $6} END {print p + 0, f + 0}' "$log")
  passed=$((passed + p))
  failed=$((failed + f))

  if [ -f "$results" ]; then
    title "Slowest tests"
    read -r p f < <(python3 scripts/run_tests.py --table "$results")
    passed=$((passed + p))
    failed=$((failed + f))
  else
    failed=$((failed + 1))
    line '!!' "the tests did not run"
  fi
  took=$((SECONDS - tests_from))
  [ $took -le $slow ] || line '!!' "the tests took $(duration $took), more than the $(duration $slow) that they may take"
else
  failed=$((failed + 1))
  line '!!' "the tests do not build"
  took=0
fi

# The hash of the tree that passed: it need not be tested again.
tree_hash() {
  local index
  index=$(mktemp)
  cp "$(git rev-parse --git-path index)" "$index" &&
    GIT_INDEX_FILE=$index git add --all && GIT_INDEX_FILE=$index git write-tree
  rm -f "$index"
}
if [ $failed -eq 0 ]; then
  tree_hash >target/last-green 2>/dev/null || rm -f target/last-green # not a checkout of git
fi

printf '\nall %s, of that tests %s; format and clippy count as one test each\n' "$(duration $((SECONDS - start)))" "$(duration $took)"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
