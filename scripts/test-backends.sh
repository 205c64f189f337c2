#!/usr/bin/env bash
# Sets up, builds, tests and measures the back ends that are programs of their own.
#
#   scripts/test-backends.sh             all back ends: each folder of devices/
#   scripts/test-backends.sh torch       one of them
#   scripts/test-backends.sh packages    packages of PyTorch (.pt2) in the back end torch, which is set up; needs PyTorch, 5 GB
#   scripts/test-backends.sh speed       measures those that are set up beside those of the command: docs/benchmarks/backends.md
#
# Each computes all shipped models, and its outputs must be those of ONNX Runtime within the tolerance that its test states.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What ONNX Runtime computes of the shipped models $2 (a pattern of their names), into the folder $1.
references() {
  local onnx
  for onnx in models/*/$2.onnx; do
    .tidemill/backends/python/bin/python scripts/onnx_reference.py "$onnx" "$1/$(basename "$onnx" .onnx)"
  done
}

# Runs tests of the program for libtorch.
cargo_torch() {
  local folder=$PWD/.tidemill/backends/torch
  (cd devices/torch && LIBTORCH=$folder/torch TIDEMILL_TORCH_MODELS=$folder/models \
    TIDEMILL_TORCH_PACKAGES=$folder/packages CARGO_TARGET_DIR="$PWD/../../target/devices" cargo test --locked --release -- --nocapture "$@")
}

test_torch() {
  scripts/backends.sh torch
  scripts/backends.sh models
  references .tidemill/backends/torch/models '*'
  cargo_torch
}

# Compiles by the command: TIDEMILL names one, or it is built.
test_tvm() {
  scripts/backends.sh tvm
  local folder=$PWD/.tidemill/backends/tvm models=$PWD/.tidemill/backends/tvm/models command=${TIDEMILL:-} onnx name packages
  if [ -z "$command" ]; then
    cargo build --locked --release --bin tidemill
    command=$PWD/target/release/tidemill
  fi
  rm -rf "$models"
  mkdir -p "$models"
  # The last one has several inputs and outputs.
  for onnx in models/*/*.onnx operators/inference/testdata/counter.onnx; do
    name=$(basename "$onnx" .onnx)
    "$folder/bin/python" scripts/onnx_reference.py "$onnx" "$models/$name"
    TIDEMILL_CACHE=$models/cache TIDEMILL_TVM=$folder "$command" models compile "$onnx" -o "$models/$name.so" >/dev/null 2>"$models/$name.said" ||
      mv "$models/$name.said" "$models/$name.refused"
  done
  packages=$(echo "$folder"/lib/python3*/site-packages)
  (cd devices/tvm && PATH=$folder/bin:$PATH TVM_LIBRARIES=$packages/tvm/lib:$packages/tvm_ffi/lib TIDEMILL_TVM_MODELS=$models \
    CARGO_TARGET_DIR="$PWD/../../target/devices" cargo test --locked --release -- --nocapture)
}

# A package holds machine code for one processor, and only PyTorch writes it: these tests are apart.
test_packages() {
  local package
  scripts/backends.sh packages
  for package in .tidemill/backends/torch/packages/*.pt2; do
    references .tidemill/backends/torch/packages "$(basename "$package" .pt2)"
  done
  cargo_torch --ignored
}

# Back ends that are not set up are left out, and the page says so.
speed() {
  PATH=$PWD/.tidemill/bin:$PATH scripts/bench.sh backends "$@"
}

all=()
for folder in devices/*/; do all+=("$(basename "$folder")"); done
if [ "${1:-}" = speed ]; then
  speed "${@:2}"
  exit
fi
[ $# -gt 0 ] || set -- "${all[@]}"
for name; do
  if ! declare -F "test_$name" >/dev/null; then
    echo "test-backends: there is no back end '$name'; write one of: ${all[*]}, 'packages' or 'speed'" >&2
    exit 2
  fi
done
for name; do "test_$name"; done
