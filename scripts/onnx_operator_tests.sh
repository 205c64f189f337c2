#!/usr/bin/env bash
# Runs the operator tests of the ONNX standard on every backend of this machine and lists those where a backend gives other
# values than the standard says. The tests come out of the package onnx 1.16.2 of the Python registry (newer ones come without them);
# needs the network once.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

folder=target/onnx-1.16.2
if [ ! -d "$folder/onnx/backend/test/data/node" ]; then
  mkdir -p "$folder"
  python3 -m venv "$folder/python"
  "$folder/python/bin/pip" download -q --no-deps --only-binary :all: -d "$folder" onnx==1.16.2
  python3 -m zipfile -e "$folder"/onnx-1.16.2-*.whl "$folder"
fi
export TIDEMILL_ONNX_TESTS=$PWD/$folder/onnx/backend/test/data/node
cargo test -p tidemill-inference --test inference onnx_operators:: -- --ignored --nocapture
