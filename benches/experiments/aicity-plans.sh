#!/usr/bin/env bash
# Plans examples/aicity with all planners on three infrastructures, runs several plans on this machine, some of them with nothing
# enforced, and writes docs/benchmarks/aicity-plans.{json,md}. About 17 minutes; the machine should be quiet.
# `--only plans`, `rates`, `expected` or `runs` does a part, `--only page` writes the page anew; `--profile FILE` plans with another profile.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/evidence.sh"

python3 benches/experiments/aicity_plans.py --binary "$binary" --work "$work" \
  --machine "$(printf '| | |\n|---|---|\n'; scripts/machine-facts.sh)" "$@"
