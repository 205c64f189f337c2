#!/usr/bin/env bash
# Sets up a back end that runs in a program of its own, beside the command.
#
#   scripts/backends.sh torch     libtorch 2.13.0 (552 MB to download, 490 MB in .tidemill/backends/torch), then
#                                 tidemill-device-torch, a build of minutes, into .tidemill/bin
#   scripts/backends.sh tvm       Apache TVM 0.27.0 with its compiler in a Python environment (200 MB to download, 690 MB in
#                                 .tidemill/backends/tvm), then tidemill-device-tvm into .tidemill/bin
#   scripts/backends.sh models    the shipped models as TorchScript, into .tidemill/backends/torch/models
#   scripts/backends.sh packages  two of them as packages for this processor, into .tidemill/backends/torch/packages, by the PyTorch of
#                                 the Python that TIDEMILL_PYTORCH names, or one that is installed for it (5 GB)
#
# Libraries come out of packages of the Python package index, of which only the parts for the processor are kept. A second call
# fetches nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'backends: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

folder=$PWD/.tidemill/backends/torch
tvm=$PWD/.tidemill/backends/tvm

fetch_torch() {
  local lib=$folder/torch/lib
  local sums="096eed6e217377ccda4d50693b680e2771709c01f58fe52717835b017fed9c58  libtorch_cpu.so
b83ea50e9171c7e3455c19f9ff2c7d21d457a7b8231e9c4ea1b6e032ae1156d5  libc10.so
e28fb2896a3d612b46a27d7f8ef840d34c9efbc29b70a044c42095fb94856890  libgomp.so.1
96c42e418cec19054186b9429c321603cc190bf26a18104e19408117a2a817b0  libcudart.so.13
e2f9ed861fe27c492b8bb52b5e3220ef5120f3edcda36312e96b7fd8a186be3e  libcupti.so.13"
  if [ -s "$lib/libtorch.so" ] && (cd "$lib" && sha256sum --quiet --check <<<"$sums" >/dev/null 2>&1); then
    say "libtorch is in $lib"
    return
  fi
  [ "$(uname -sm)" = "Linux x86_64" ] ||
    fail "no recipe for $(uname -sm): build devices/torch with LIBTORCH=FOLDER of a libtorch 2.13.0"
  for tool in python3 unzip gcc; do
    command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install python3-pip unzip g++"
  done
  mkdir -p "$folder"
  work=$(mktemp -d "$folder/.fetch-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  say "downloading libtorch 2.13.0 (552 MB)"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 311 \
    --implementation cp --abi cp311 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux2014_x86_64 --dest "$work" \
    torch==2.13.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85 ||
    fail "pip could not download it; check the network and pip's index settings"
  unzip -q "$work"/torch-2.13.0*.whl 'torch/lib/libtorch_cpu.so' 'torch/lib/libc10.so' 'torch/lib/libgomp*' 'torch/include/*' -d "$work"
  unzip -joq "$work"/nvidia_cuda_runtime*.whl nvidia/cu13/lib/libcudart.so.13 -d "$work/torch/lib"
  unzip -joq "$work"/nvidia_cuda_cupti*.whl nvidia/cu13/lib/libcupti.so.13 -d "$work/torch/lib"
  (cd "$work/torch/lib" && sha256sum --quiet --check <<<"$sums") || fail "a library has another sha256 than expected: not installed"
  # The package's own libtorch.so needs CUDA. This one only leads to the part for the processor.
  (cd "$work/torch/lib" && gcc -shared -o libtorch.so -Wl,-soname,libtorch.so -Wl,--no-as-needed -Wl,-rpath,'$ORIGIN' -L. \
    -l:libtorch_cpu.so -l:libc10.so -Wl,--allow-shlib-undefined)
  rm -rf "$folder/torch"
  mv "$work/torch" "$folder/torch"
  say "installed $folder/torch"
}

build_torch() {
  say "building tidemill-device-torch"
  # torch-sys finds libtorch by this variable, and has to have it in every build.
  (cd devices/torch && LIBTORCH=$folder/torch CARGO_TARGET_DIR="$PWD/../../target/devices" cargo build --locked --release)
  mkdir -p .tidemill/bin
  cp target/devices/release/tidemill-device-torch .tidemill/bin/
  say "installed .tidemill/bin/tidemill-device-torch; \`device: proxy:torch\` finds it on PATH or beside the command"
}

# Prints the folders of TVM's libraries, as one path.
libraries_of_tvm() {
  local packages
  packages=$(cd "$tvm" && echo "$PWD"/lib/python3*/site-packages)
  echo "$packages/tvm/lib:$packages/tvm_ffi/lib"
}

has_tvm() {
  local sums="43544bbeaea3cd3ffa919f7eac77244753aff28d1440c42f1ba8df03fa6e3948  tvm/lib/libtvm_runtime.so
9836d9e9937749a9a80661a3b4d41449110e3f9fb2cee440b48b50ba311a3b95  tvm/lib/libtvm_compiler.so
e44372c658f0b5b6833f29402edfdd49d14a1e8ca50999d7e099f7c1f0822baa  tvm_ffi/lib/libtvm_ffi.so"
  [ -x "$tvm/bin/python" ] && (cd "$tvm"/lib/python3*/site-packages && sha256sum --quiet --check <<<"$sums") >/dev/null 2>&1
}

fetch_tvm() {
  if has_tvm; then
    say "TVM is in $tvm"
    return
  fi
  [ "$(uname -sm)" = "Linux x86_64" ] ||
    fail "no recipe for $(uname -sm): build devices/tvm with TVM_LIBRARIES=FOLDER:FOLDER of libtvm_runtime.so and libtvm_ffi.so 0.27.0"
  command -v g++ >/dev/null || fail "g++ is missing, which links modules: apt-get install g++"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "python3 is older than 3.11: install a newer one"
  rm -rf "$tvm"
  python3 -m venv "$tvm" >/dev/null || fail "python3 has no venv: apt-get install python3-venv"
  say "downloading Apache TVM 0.27.0 and the packages of its compiler (200 MB)"
  "$tvm/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: -r scripts/tvm-requirements.txt ||
    fail "pip could not install it; check the network and pip's index settings"
  if ! has_tvm; then
    rm -rf "$tvm"
    fail "a library has another sha256 than expected: not installed"
  fi
  say "installed $tvm; \`tidemill models compile\` uses it"
}

build_tvm() {
  say "building tidemill-device-tvm"
  # The crate tvm-ffi asks the program tvm-ffi-config of the environment for its library.
  (cd devices/tvm && PATH=$tvm/bin:$PATH TVM_LIBRARIES=$(libraries_of_tvm) CARGO_TARGET_DIR="$PWD/../../target/devices" \
    cargo build --locked --release)
  mkdir -p .tidemill/bin
  cp target/devices/release/tidemill-device-tvm .tidemill/bin/
  say "installed .tidemill/bin/tidemill-device-tvm; \`device: proxy:tvm\` finds it on PATH or beside the command"
}

python_of_models() {
  local python=.tidemill/backends/python
  if ! "$python/bin/python" -c 'import numpy, onnx, onnxruntime' 2>/dev/null; then
    python3 -m venv "$python" >/dev/null || fail "python3 has no venv: apt-get install python3-venv"
    "$python/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.31.1
  fi
  echo "$python/bin/python"
}

models() {
  local python onnx
  python=$(python_of_models)
  mkdir -p "$folder/models"
  for onnx in models/*/*.onnx; do
    "$python" scripts/onnx_to_torchscript.py "$onnx" "$folder/models/$(basename "$onnx" .onnx).pt"
  done
  say "$(find "$folder/models" -name '*.pt' | wc -l) models in $folder/models"
}

python_of_packages() {
  local python=${TIDEMILL_PYTORCH:-$folder/python/bin/python}
  if ! "$python" -c 'import onnx, torch' 2>/dev/null; then
    [ -z "${TIDEMILL_PYTORCH:-}" ] || fail "$python has no torch and onnx: install them there, or leave TIDEMILL_PYTORCH out"
    say "installing PyTorch 2.13.0 (5 GB)"
    python3 -m venv "$folder/python" >/dev/null || fail "python3 has no venv: apt-get install python3-venv"
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 onnx==1.23.2 setuptools
  fi
  echo "$python"
}

packages() {
  local python model
  python=$(python_of_packages)
  mkdir -p "$folder/packages"
  for model in scene-features-tiny speech-small; do
    "$python" -W ignore scripts/onnx_to_package.py "models/vqa/$model.onnx" "$folder/packages/$model.pt2"
  done
  say "$(find "$folder/packages" -name '*.pt2' | wc -l) packages in $folder/packages"
}

case "${1:-}" in
  torch) fetch_torch && build_torch ;;
  tvm) fetch_tvm && build_tvm ;;
  models) models ;;
  packages) packages ;;
  *) fail "which back end? write 'torch' or 'tvm'; or 'models' for the shipped models as TorchScript, 'packages' for two of them as packages" ;;
esac
