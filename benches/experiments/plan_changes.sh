#!/usr/bin/env bash
# Plans of runs that change again and again, on workers of a cluster on this machine:
# plans that nobody chose (stages move, operators are divided), whose output must be that of a run that nothing happens to, and
# two models that take turns. Prints how long sinks paused (p50, p90, p99, worst), and memory before and after.
#   benches/experiments/plan_changes.sh        100 changes of each, about a quarter of an hour
#   benches/experiments/plan_changes.sh 20     fewer
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/environment.sh"

export TIDEMILL_PLAN_CHANGES=${1:-100}
for test in many_plans_that_nobody_chose many_swaps_of_a_model; do
    cargo test --locked -p tidemill --test cli -- --ignored --exact --nocapture "cluster_random_plans::$test"
done
