#!/usr/bin/env bash
# Compiles what needs HiGHS and runs its tests: the feature `highs` is not in the default build, because HiGHS takes minutes
# to build and needs cmake, a C++ compiler and libclang (Debian: cmake g++ libclang-dev; LIBCLANG_PATH names another place).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

command -v cmake >/dev/null || stop "HiGHS needs cmake: install cmake, a C++ compiler and libclang (Debian: cmake g++ libclang-dev)"
cargo clippy --locked -p tidemill -p tidemill-optimizer -p tidemill-benches --all-targets \
  --features tidemill/highs,tidemill-optimizer/highs,tidemill-benches/highs -- -D warnings
cargo test --locked -p tidemill -p tidemill-optimizer --features tidemill/highs,tidemill-optimizer/highs --lib highs
