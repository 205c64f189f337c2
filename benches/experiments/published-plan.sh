#!/usr/bin/env bash
# Plans the published workflow for the published machines at several rates, as the publication did and as we do, runs
# every plan emulated with models of the same size, and writes predicted and measured rates side by side to
# docs/benchmarks/published-plan.{json,md,svg}: the publication's Figure 5.5. About an hour on two cores; export the models
# first (models/standard/export.py). `--rates 40 --seconds 5` does less, `--only ours` one planner.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/evidence.sh"

python3 benches/experiments/published_plan.py --binary "$binary" --work "$work" \
  --machine "$(printf '| | |\n|---|---|\n'; scripts/machine-facts.sh)" "$@"
