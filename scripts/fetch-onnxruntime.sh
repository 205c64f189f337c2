#!/usr/bin/env bash
# Fetches the ONNX Runtime library for the `ort` backend: the fastest one, not needed to run.
#
#   scripts/fetch-onnxruntime.sh [DIR]        default: .tidemill/lib of this repository
#
# Tidemill loads the library when a run starts and looks for it in that folder. Without it,
# models run on the built-in backend `rten`. The library is the one inside the `onnxruntime`
# package of the Python package index, because that is the only prebuilt one that pip mirrors
# carry too; Python itself is not needed afterwards. A second call does nothing.
set -euo pipefail

VERSION=1.31.1
SHA256_X86_64=fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3

say() { printf 'fetch-onnxruntime: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# Without a name the script came through a pipe, and DIR says where to.
here=$(cd "$(dirname "${BASH_SOURCE[0]:-.}")/.." && pwd)
directory=${1:-$here/.tidemill/lib}
library=$directory/libonnxruntime.so.$VERSION

[ "$(uname -s)" = Linux ] || fail "no recipe for $(uname -s): install ONNX Runtime 1.24 or newer and set TIDEMILL_ONNXRUNTIME to its library file"
case "$(uname -m)" in
  x86_64) platform=manylinux_2_28_x86_64 expected=$SHA256_X86_64 ;;
  aarch64 | arm64) platform=manylinux_2_28_aarch64 expected= ;;
  *) fail "no package for $(uname -m): models run on the backend rten there" ;;
esac

# Succeeds when the file is the pinned one; where no digest is pinned, when it is not empty.
is_right() {
  [ -s "$1" ] || return 1
  [ -z "$expected" ] || printf '%s  %s\n' "$expected" "$1" | sha256sum --check --status -
}

if is_right "$library"; then
  say "$library is already there"
  exit 0
fi

command -v python3 >/dev/null || fail "python3 is missing (it downloads and unpacks the package): apt-get install python3-pip"
python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip: apt-get install python3-pip"

mkdir -p "$directory"
work=$(mktemp -d "$directory/.fetch-XXXXXX")
trap 'rm -rf "$work"' EXIT

say "downloading onnxruntime $VERSION for $platform (about 24 MB)"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version 311 --implementation cp --abi cp311 --platform "$platform" \
  --dest "$work" "onnxruntime==$VERSION" ||
  fail "pip could not download onnxruntime $VERSION; check the network and pip's index settings"

python3 - "$work" "$VERSION" <<'PYTHON' || fail "the package does not hold the library it should"
import pathlib, shutil, sys, zipfile

work, version = pathlib.Path(sys.argv[1]), sys.argv[2]
wheel, = work.glob("onnxruntime-*.whl")
with zipfile.ZipFile(wheel) as archive:
    name = f"onnxruntime/capi/libonnxruntime.so.{version}"
    with archive.open(name) as source, open(work / "library", "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON

is_right "$work/library" ||
  fail "the library's sha256 is $(sha256sum "$work/library" | cut -d' ' -f1), expected $expected: not installed"
chmod 644 "$work/library"
mv "$work/library" "$library"  # a rename, so that a half-written library is never found
say "installed $library"
