#!/usr/bin/env bash
# Makes the image of Tidemill, `tidemill:VERSION`: controller and worker are the same program.
#
#   scripts/image.sh                    packs the build of this tree for images (profile `image`; built first, if it is not)
#   scripts/image.sh --dev              packs the development build: for the demo and for tests
#   scripts/image.sh --program FILE     packs this program
#   scripts/image.sh --from-source      compiles it in a container (deploy/images/Dockerfile; a long while)
#     --tag NAME                        another name; default tidemill:VERSION
#     --onnxruntime                     also NAME-onnxruntime, with the library of ONNX Runtime in it
#     --ffmpeg                          also NAME-ffmpeg, with the program ffmpeg in it, for videos; with both options also
#                                       NAME-onnxruntime-ffmpeg, with both in it
#     --sbom DIR                        where it is written what is in each of them, as CycloneDX JSON; default target/sbom
#     --no-sbom                         nowhere
#
# A release that is larger than 64 MB without any of these is an error.
#
# Where no registry can be reached the base images are made from Debian's packages (scripts/base_images.sh).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
how=release program='' tag=tidemill:$version with_onnxruntime=no with_ffmpeg=no sbom=${CARGO_TARGET_DIR:-target}/sbom
most=64 # MB; the goal is 60
while [ $# -gt 0 ]; do
  case $1 in
    --dev) how=dev ;;
    --from-source) how=source ;;
    --program) how=given program=${2:?--program wants a file} && shift ;;
    --tag) tag=${2:?--tag wants a name} && shift ;;
    --onnxruntime) with_onnxruntime=yes ;;
    --ffmpeg) with_ffmpeg=yes ;;
    --sbom) sbom=${2:?--sbom wants a folder} && shift ;;
    --no-sbom) sbom='' ;;
    *) stop "$1 is no option" "$(sed -n '2,18p' "$0")" ;;
  esac
  shift
done

revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
if [ "$revision" != unknown ] && [ -n "$(git status --porcelain --untracked-files=no)" ]; then revision=$revision-changed; fi
seconds=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
# The builder that every engine has; it leaves folders the times that they are copied with, so that layers are the same each time.
export DOCKER_BUILDKIT=0

work=$(mktemp -d)
# The builder leaves the first stage behind as an image without a name.
forget() {
  rm -rf "$work"
  docker image ls --quiet --filter dangling=true --filter label=org.tidemill.stage=layout | xargs -r docker image rm --force >/dev/null 2>&1 || true
}
trap forget EXIT
trap 'exit 130' INT TERM
build() {
  build_once "$@" && return
  # A layer of another build was taken over while somebody removed that one's image.
  if grep -q "No such image" "$work/build" && build_once "$@"; then return; fi
  tail -n 20 "$work/build" >&2
  stop "the image cannot be built"
}
build_once() { docker build --quiet --build-arg "VERSION=$version" --build-arg "REVISION=$revision" "$@" >"$work/build" 2>&1; }

scripts/base_images.sh runtime
if [ $how = source ]; then
  scripts/base_images.sh build
  line get "$tag, compiled in a container"
  build --build-arg "SOURCE_DATE_EPOCH=$seconds" --file deploy/images/Dockerfile --tag "$tag" .
else
  target=${CARGO_TARGET_DIR:-target}
  case $how in
    release) build_for_release -C link-arg=-Wl,-z,pack-relative-relocs ;;
    dev) cargo build --locked --package tidemill --bin tidemill && program=$target/debug/tidemill ;;
  esac
  [ -x "$program" ] || stop "there is no program $program"
  deploy/images/lay_out.sh "$program" "$work/layout" "$seconds"
  build --file deploy/images/prebuilt.Dockerfile --tag "$tag" "$work/layout"
fi
docker run --rm --network none --read-only --cap-drop ALL "$tag" version >"$work/version" 2>&1 || {
  tail -n 5 "$work/version" >&2
  stop "the program does not start in the image" "it is linked with a newer libc than the base has, perhaps: build it on Debian 12, or --from-source"
}
megabytes() { echo $(($(docker image inspect --format '{{.Size}}' "$1") / 1000000)); }
line ok "$tag, $(megabytes "$tag") MB"
if [ "$(megabytes "$tag")" -gt "$most" ]; then
  case $how in
    release | source) stop "$tag is larger than $most MB" "what has grown: docker history $tag; cargo bloat --profile image --crates" ;;
    *) line '--' "$tag is larger than the $most MB that a release may have" ;;
  esac
fi
# Writes what is in an image: `describe IMAGE [--library NAME=VERSION] [--ffmpeg VERSION]`.
describe() {
  [ -n "$sbom" ] || return 0
  python3 scripts/image_sbom.py "$@" --out "$sbom/${1//[:\/]/-}.cdx.json" >"$work/sbom" || stop "what is in $1 cannot be told"
  line ok "$(cat "$work/sbom")"
}
describe "$tag"

# Makes IMAGE-NAME, which is IMAGE and what `scripts/fetch-library.sh NAME` fetches: `add NAME IMAGE`. `added` is the file.
add() {
  scripts/fetch-library.sh "$1"
  added=.tidemill/lib/$(scripts/fetch-library.sh "$1" --file)
  # Only the addition goes into the image.
  deploy/images/lay_out.sh /bin/true "$work/$1" "$seconds" "$added"
  build --build-arg "IMAGE=$2" --file "deploy/images/$1.Dockerfile" --tag "$2-$1" "$work/$1"
  line ok "$2-$1, $(megabytes "$2-$1") MB"
}
# What the program says in an image, without a network and without rights.
says() { docker run --rm --network none --read-only --cap-drop ALL "$@" >"$work/said" 2>&1 || true; }
finds_onnxruntime() {
  says "$1" version
  grep -Eq '^backend ort: [0-9]' "$work/said" || stop "the library is not found in $1" "$(cat "$work/said")"
}
# `doctor` starts ffmpeg to learn its version.
finds_ffmpeg() {
  says "$1" doctor
  grep -Eq '^ok +ffmpeg +[0-9].*, /usr/lib/tidemill/ffmpeg$' "$work/said" || stop "ffmpeg does not run in $1" "$(cat "$work/said")"
}

if [ $with_onnxruntime = yes ]; then
  add onnxruntime "$tag"
  finds_onnxruntime "$tag-onnxruntime"
  onnxruntime=(--library "onnxruntime=${added##*.so.}")
  describe "$tag-onnxruntime" "${onnxruntime[@]}"
fi
if [ $with_ffmpeg = yes ]; then
  add ffmpeg "$tag"
  finds_ffmpeg "$tag-ffmpeg"
  ffmpeg=(--ffmpeg "${added##*-v}")
  describe "$tag-ffmpeg" "${ffmpeg[@]}"
fi
if [ $with_onnxruntime = yes ] && [ $with_ffmpeg = yes ]; then
  add ffmpeg "$tag-onnxruntime"
  finds_onnxruntime "$tag-onnxruntime-ffmpeg"
  finds_ffmpeg "$tag-onnxruntime-ffmpeg"
  describe "$tag-onnxruntime-ffmpeg" "${onnxruntime[@]}" "${ffmpeg[@]}"
fi
