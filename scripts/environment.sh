# shellcheck shell=bash
# Sourced by the scripts beside it: moves to the repository root, finds the Rust toolchain that
# `make setup` may have installed, and defines how these scripts talk.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# rustup installs here; a shell that was open before `make setup` does not know it yet.
if [ -d "${CARGO_HOME:-$HOME/.cargo}/bin" ]; then
  PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
fi
# Written by `make setup` where the default toolchain is older than the one this workspace needs.
if [ -z "${RUSTUP_TOOLCHAIN:-}" ] && [ -f .tidemill/toolchain ]; then
  RUSTUP_TOOLCHAIN=$(cat .tidemill/toolchain)
  export RUSTUP_TOOLCHAIN
  PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi
export PATH

# Tools that only some targets need (cargo-deny, mdbook) live in the repository, not in the home folder.
tools=$PWD/.tidemill/tools

# The result of a step, one line a thing: "ok", "get", "--" (not there, and that is fine), "!!".
line() { printf '%-4s%s\n' "$1" "$2"; }
stop() {
  line '!!' "$1" >&2
  shift
  for more in "$@"; do printf '    %s\n' "$more" >&2; done
  exit 1
}
title() { printf '\n== %s\n' "$1"; }

# Succeeds when version $1 is at least $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# "75 s", "3 min 20 s"
duration() { if [ "$1" -lt 120 ]; then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi; }

# Builds a cargo tool into .tidemill/tools unless that version is there: `tool NAME VERSION WHY`.
# Built for a quick build rather than a quick tool: we run these for seconds.
tool() {
  if [ -x "$tools/bin/$1" ] && [ "$("$tools/bin/$1" --version | awk '{print $2}' | tr -d v)" = "$2" ]; then
    line ok "$1 $2"
    return
  fi
  line get "$1 $2 (built from source, some minutes): $3"
  CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    cargo install --locked --quiet --root "$tools" "$1@$2" ||
    stop "$1 could not be installed" "the crates registry must be reachable the first time; make setup, demo and test do not need it"
}

# A development build for work: the crates that move and compute records are optimised (docs/decisions/0054).
optimised=()
for package in engine operators inference; do
  optimised+=(--config "profile.dev.package.tidemill-$package.opt-level=2")
done

# Builds the command $1 with what a run on one machine needs, or with everything where it has everything now: `build_for_demo PROGRAM`.
build_for_demo() {
  local features=(--no-default-features)
  if "$1" version --output json 2>/dev/null | grep -q '"cluster": true'; then features=(); fi
  cargo build --locked -p tidemill "${features[@]}" "${optimised[@]}"
}

# Runs a program that a Ctrl-C on the terminal does not reach, and waits for it also where one reaches this script meanwhile.
sheltered() {
  local child status
  set -m # a process group of its own
  "$@" </dev/null &
  child=$!
  set +m
  while :; do
    status=0
    wait "$child" || status=$?
    kill -0 "$child" 2>/dev/null || return "$status"
  done
}

# Builds the command for images and wheels; `program` is it. Where this tree and the fetched crates lie is in no message of the program,
# as in deploy/images/Dockerfile, so that the same commit gives the same bytes everywhere. In a folder of its own, because these flags
# have everything built anew. `build_for_release [OPTION OF RUSTC ...]`
build_for_release() {
  local crates=${CARGO_HOME:-$HOME/.cargo} target=${CARGO_TARGET_DIR:-target}
  # What is written in C says where it lies in its own manner.
  CFLAGS="-ffile-prefix-map=$PWD=. -ffile-prefix-map=$crates=cargo${CFLAGS:+ $CFLAGS}" \
    RUSTFLAGS="--remap-path-prefix=$PWD=. --remap-path-prefix=$crates=cargo" \
    cargo rustc --locked --profile image --package tidemill --bin tidemill --target-dir "$target/image" -- "$@"
  # shellcheck disable=SC2034
  program=$target/image/image/tidemill
}
