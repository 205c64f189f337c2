#!/usr/bin/env bash
# A hundred kills and a hundred cuts of runs in several processes (cli/tests/chaos), and a million changed messages of each kind that
# peers say; writes docs/benchmarks/chaos.md.
#   benches/experiments/chaos.sh            other faults each time, about ten minutes, eight of them waits
#   benches/experiments/chaos.sh 500        more of them
#   benches/experiments/chaos.sh 100 SEED   the faults of a run before; when they happen is still up to the machine
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/environment.sh"

rows=$PWD/target/chaos-rows.md
report=docs/benchmarks/chaos.md
rm -f "$rows"
export TIDEMILL_PROCESS_CHAOS_COUNT=${1:-100} TIDEMILL_PROCESS_CHAOS_REPORT=$rows
if [ $# -gt 1 ]; then export TIDEMILL_PROCESS_CHAOS=$2; fi
cargo test --locked -p tidemill --test cli -- --ignored --exact --nocapture chaos::many_faults_change_nothing
storage=passed
cargo test --locked -p tidemill --test cli -- --ignored --exact \
  storage::a_state_that_finds_no_space_for_30_seconds_ends_the_run \
  storage::a_bucket_that_stays_away_ends_the_run_and_the_same_command_goes_on \
  buckets::a_service_that_is_away_for_a_minute_fails_no_run || storage='**failed**'
[ -f "$rows" ] || stop "no result: the test did not run"
mutated=target/chaos-mutated.txt
export TIDEMILL_MUTATIONS=${TIDEMILL_MUTATIONS:-1000000}
cargo test --locked --release -p tidemill-link -p tidemill-engine --lib -- --nocapture --test-threads 1 mutat | tee "$mutated"
{
  cat <<HEAD
# Runs that are disturbed

Written by \`benches/experiments/chaos.sh $TIDEMILL_PROCESS_CHAOS_COUNT\`. A workflow of two sources, two routes through a filter, a join and a window, and
sinks of three kinds, as processes of three workers on this machine, with checkpoints every 50 ms, 200 ms or 1 s. In each run about
20 faults occur at random times, one in five during the recovery from the previous one. The final outputs are those of an
undisturbed run: \`jsonl\`, \`csv\` and dead letters to the byte, Parquet row by row. No process, socket,
temporary file or object of a state was left.

| | |
|---|---|
| date | $(date -u +%Y-%m-%d) |
$(scripts/machine-facts.sh)

HEAD
  cat "$rows"
  echo
  echo "A disk that stays full for 30 s, and a bucket that is away for a minute and permanently (long tests of \`storage\` and \`buckets\`): $storage."
  cat <<'CHANGED'

Messages of peers are changed in transit, once or a few times: bits, bytes, missing parts, extra parts. Frames, messages and greetings have
checksums: each is rejected, or is unchanged (the change hit unused bytes). The checksums of notices and orders were recomputed, as an
attacker would do: each is rejected, or read with its new content and then checked against the plan. Nothing panicked, and memory did
not grow.

| | changed | refused | taken |
|---|--:|--:|---|
CHANGED
  sed -nE 's/^(.*test .*\.\.\. )?([a-z]+): ([0-9]+) changed, ([0-9]+) refused, ([0-9]+) (.*)$/| \2 | \3 | \4 | \5, \6 |/p' "$mutated"
  cat <<'TAIL'

Time is from the fault to the first new row in the file of the `jsonl` sink after the longest pause that followed, so that rows in
transit do not count; a fault during the recovery from another one is not timed. Connections are cut at one end, by
`shutdown` or with a reset that discards the data in transit, through a copy of the socket that the test takes out of the process
(`pidfd_getfd`): nothing in the product helps.
TAIL
} >"$report"
line ok "wrote $report"
