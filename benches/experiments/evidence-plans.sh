#!/usr/bin/env bash
# Plans the example in eleven ways, runs every plan emulated on this machine, and writes predicted, simulated and measured
# figures to docs/benchmarks/plans-measured.{json,md}. About 7 minutes; the machine should be quiet.
# PROFILE is the profile to plan with, by default the one that ships: workers are evidence only where it was measured on
# this machine (make profiles). `--seconds 60` runs longer, `--only NAME` runs one plan.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/evidence.sh"

python3 benches/experiments/evidence_plans.py --binary "$binary" --profile "${PROFILE:-examples/vqa/profile.yaml}" --work "$work" \
  --machine "$(printf '| | |\n|---|---|\n'; scripts/machine-facts.sh)" "$@"
