#!/usr/bin/env bash
# Sets up, builds and tests the back ends that are programs of their own: scripts/test-backends.sh [torch]
#
# Each computes all shipped models, and its outputs must be those of ONNX Runtime within the tolerance that its test states.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

test_torch() {
  scripts/backends.sh torch
  scripts/backends.sh models
  local folder=$PWD/.tidemill/backends/torch onnx
  for onnx in models/*/*.onnx; do
    .tidemill/backends/python/bin/python scripts/onnx_reference.py "$onnx" "$folder/models/$(basename "$onnx" .onnx)"
  done
  (cd devices/torch && LIBTORCH=$folder/torch LD_LIBRARY_PATH=$folder/torch/lib TIDEMILL_TORCH_MODELS=$folder/models \
    CARGO_TARGET_DIR="$PWD/../../target/devices" cargo test --locked --release -- --nocapture)
}

case "${1:-torch}" in
  torch) test_torch ;;
  *) echo "test-backends: which back end? write 'torch'" >&2 && exit 2 ;;
esac
