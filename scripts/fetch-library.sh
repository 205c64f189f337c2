#!/usr/bin/env bash
# Fetches a library that Tidemill loads when it needs it and that is not needed to run.
#
#   scripts/fetch-library.sh onnxruntime|highs|ffmpeg|avcodec [DIR]        default: .tidemill/lib of this repository
#
# onnxruntime runs models faster than the built-in backend `rten`; highs proves plans that the built-in solver leaves open;
# ffmpeg is the program that reads and writes videos (a static build, under the GPL); avcodec is a folder with ffmpeg's
# libraries, which decode videos inside a process (a build under the LGPL, and the libraries it needs: libvpx, libdrm, OpenSSL).
# The libraries are those inside packages of the Python package index, because these are the only prebuilt ones that pip
# mirrors carry too; Python itself is not needed afterwards. A second call does nothing.
set -euo pipefail

say() { printf 'fetch-library: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

case "${1:-}" in
  onnxruntime)
    package=onnxruntime version=1.31.1 megabytes=24
    member=onnxruntime/capi/libonnxruntime.so.$version
    sha256_x86_64=fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3
    sha256_aarch64=
    yourself="install ONNX Runtime 1.24 or newer and set TIDEMILL_ONNXRUNTIME to its library file"
    without="models run on the backend rten there"
    ;;
  highs)
    package=highspy version=1.15.1 megabytes=5
    member=highspy/libhighs.so.$version
    sha256_x86_64=4964579253b67b4525fbe4985725560732dac3b8f178356e6699f9411e64d93a
    sha256_aarch64=48d420a9a3cc7ad373651aa1eba675a3f1daf297483402fe13c65172ca09511b
    yourself="install HiGHS 1.7 or newer and set TIDEMILL_HIGHS to its library file"
    without="plans are made with microlp there"
    ;;
  ffmpeg)
    package=imageio-ffmpeg version=0.6.0 megabytes=30
    member=imageio_ffmpeg/binaries/ffmpeg-linux-$(uname -m)-v7.0.2
    sha256_x86_64=e7e7fb30477f717e6f55f9180a70386c62677ef8a4d4d1a5d948f4098aa3eb99
    sha256_aarch64=6bb182d0d75d23028db82e9e4f723ca69b853d055698486e6984ddb2c06fb8ce
    yourself="install ffmpeg 5.1 or newer, or set TIDEMILL_FFMPEG to the program"
    without="workflows with videos do not run there; apt-get install ffmpeg"
    ;;
  avcodec)
    # Of ffmpeg 8.1.1. The package `av` has newer ones that decode AV1 too, but they load x264 and x265, which are under the GPL.
    package=opencv-python-headless version=5.0.0.93 megabytes=61
    member=avcodec-62.28.101
    parts=$(printf "opencv_python_headless.libs/%s-* " libav{util,codec,format} libsw{resample,scale} libvpx libdrm lib{crypto,ssl})
    sha256_x86_64=2632bd0e22152d3d7630ebfd38c4f3873b9ab2a6b105fd222152a9a31b509184
    sha256_aarch64=6cba4b231015706e84a036e1a0be9690ab0697bf73ce58c3056aa18a67ea96f5
    yourself="install the libraries of ffmpeg 8 and set TIDEMILL_AVCODEC to their folder"
    without="videos are decoded by the program ffmpeg there"
    ;;
  *) fail "which library? write 'onnxruntime', 'highs', 'ffmpeg' or 'avcodec'" ;;
esac
# For scripts that want to know.
if [ "${2:-}" = --file ]; then
  basename "$member"
  exit 0
fi

# Without a name the script came through a pipe, and DIR says where to.
here=$(cd "$(dirname "${BASH_SOURCE[0]:-.}")/.." && pwd)
directory=${2:-$here/.tidemill/lib}
library=$directory/$(basename "$member")

[ "$(uname -s)" = Linux ] || fail "no recipe for $(uname -s): $yourself"
case "$(uname -m)" in
  x86_64) platforms="manylinux_2_28_x86_64 manylinux2014_x86_64" expected=$sha256_x86_64 ;;
  aarch64 | arm64) platforms="manylinux_2_28_aarch64 manylinux2014_aarch64" expected=$sha256_aarch64 ;;
  *) fail "no package for $(uname -m): $without" ;;
esac

# Digest of a file, or of the list of a folder's files with their digests.
digest() {
  if [ -d "$1" ]; then (cd "$1" && LC_ALL=C sha256sum -- * | sha256sum | cut -d' ' -f1); else sha256sum "$1" | cut -d' ' -f1; fi
}

# Succeeds when the file or folder is the pinned one; where no digest is pinned, when it is not empty.
is_right() {
  [ -s "$1" ] || return 1
  [ -z "$expected" ] || [ "$(digest "$1")" = "$expected" ]
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

platform_options=()
for platform in $platforms; do platform_options+=(--platform "$platform"); done
say "downloading $package $version for $(uname -m) (about $megabytes MB)"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version 311 --implementation cp --abi cp311 --abi abi3 "${platform_options[@]}" \
  --dest "$work" "$package==$version" ||
  fail "pip could not download $package $version; check the network and pip's index settings"

python3 - "$work" "$package" "$member" "${parts:-}" <<'PYTHON' || fail "the package does not hold the library it should"
import fnmatch, pathlib, shutil, sys, zipfile

work, package, member, parts = pathlib.Path(sys.argv[1]), *sys.argv[2:]
wheel, = work.glob(f"{package.replace('-', '_')}-*.whl")
library = work / "library"
with zipfile.ZipFile(wheel) as archive:
    files = {member: library}
    if parts:
        library.mkdir()
        files = {}
        for pattern in parts.split():
            name, = fnmatch.filter(archive.namelist(), pattern)
            files[name] = library / pathlib.Path(name).name
    for name, place in files.items():
        with archive.open(name) as source, open(place, "wb") as target:
            shutil.copyfileobj(source, target)
PYTHON

is_right "$work/library" ||
  fail "the library's sha256 is $(digest "$work/library"), expected $expected: not installed"
case $1 in ffmpeg | avcodec) chmod 755 "$work/library" ;; *) chmod 644 "$work/library" ;; esac
# A folder cannot replace another.
if [ -d "$library" ]; then mv "$library" "$work/replaced"; fi
mv "$work/library" "$library"  # a rename, so that a half-written library is never found
say "installed $library"
