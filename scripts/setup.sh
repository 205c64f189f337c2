#!/usr/bin/env bash
# Makes the machine ready to build, run and test Tidemill: installs what is missing and nothing else.
# A second call only looks. Afterwards everything but `make lint` and `make book` works offline.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
rustup_url=https://sh.rustup.rs

# Is there a C compiler that can also link? `cc` alone is there on some machines without libc's headers.
can_compile() {
  local cc
  cc=$(command -v cc || command -v gcc || command -v clang) || return 1
  echo 'int main(void) { return 0; }' | "$cc" -x c -o /dev/null - 2>/dev/null
}
has_pip() { python3 -m pip --version >/dev/null 2>&1; }
rust_version() { rustc --version 2>/dev/null | awk '{print $2}'; }
rust_is_enough() { local v; v=$(rust_version) && [ -n "$v" ] && at_least "$v" "$needed"; }

# --- system packages, all in one go, so that sudo asks once at most
onnxruntime=.tidemill/lib/$(scripts/fetch-library.sh onnxruntime --file)
highs=.tidemill/lib/$(scripts/fetch-library.sh highs --file)
ffmpeg=.tidemill/lib/$(scripts/fetch-library.sh ffmpeg --file)
avcodec=.tidemill/lib/$(scripts/fetch-library.sh avcodec --file)
packages=()
if can_compile; then
  line ok "C compiler and linker"
else
  packages+=(gcc libc6-dev)
  line get "gcc, libc6-dev: Rust links with them"
fi
if ! command -v make >/dev/null; then
  packages+=(make)
  line get "make: every command of the README goes through it"
fi
if ! rust_is_enough && ! command -v rustup >/dev/null && ! command -v curl >/dev/null; then
  packages+=(curl ca-certificates)
  line get "curl: fetches the Rust toolchain"
fi
if command -v python3 >/dev/null; then
  line ok "python3 $(python3 -c 'import platform; print(platform.python_version())')"
else
  packages+=(python3)
  line get "python3: unpacks libraries and runs the tests' table"
fi
if { [ ! -s "$onnxruntime" ] || [ ! -s "$highs" ] || [ ! -s "$ffmpeg" ] || [ ! -s "$avcodec" ]; } && ! has_pip; then
  packages+=(python3-pip)
  line get "python3-pip: fetches the libraries of ONNX Runtime and HiGHS, and ffmpeg"
fi
if [ ${#packages[@]} -gt 0 ]; then
  by_hand="install them yourself, then call make again: ${packages[*]}"
  command -v apt-get >/dev/null || stop "no apt-get on this machine" "$by_hand (Debian's names)"
  install="apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends ${packages[*]}"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if [ "$(id -u)" = 0 ]; then
    as_root=(sh -c)
  elif command -v sudo >/dev/null; then
    as_root=(sudo sh -c)
  else
    stop "neither root nor sudo: cannot install ${packages[*]}" "$by_hand"
  fi
  # apt's own words are shown only when it fails.
  "${as_root[@]}" "$install" >"$log" 2>&1 || {
    tail -n 15 "$log" >&2
    stop "apt-get could not install ${packages[*]}" "$by_hand"
  }
fi

# --- Rust
if rust_is_enough; then
  line ok "rustc $(rust_version) (needs $needed)"
else
  found=$(rust_version || true)
  if command -v rustup >/dev/null; then
    line get "rustc stable through rustup: needs $needed, found ${found:-none}"
    rustup toolchain install stable --profile minimal --component clippy --component rustfmt --no-self-update >/dev/null ||
      stop "rustup could not install the stable toolchain" "check the network and call make again, or install rustc $needed or newer yourself"
  else
    line get "rustc stable with rustup, into ${CARGO_HOME:-$HOME/.cargo}: needs $needed, found ${found:-none}"
    script=$(mktemp)
    curl --proto '=https' --tlsv1.2 -sSf "$rustup_url" -o "$script" || {
      rm -f "$script"
      stop "cannot fetch Rust's installer from $rustup_url" \
        "check the network (a proxy goes into https_proxy), or install rustc $needed or newer and cargo yourself" \
        "so that both are in PATH, and call make again"
    }
    RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$script" -y -q --no-modify-path --profile minimal -c clippy -c rustfmt >/dev/null || {
      rm -f "$script"
      stop "Rust's installer failed (its words are above)"
    }
    rm -f "$script"
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    line -- "for cargo in your own shell: . ${CARGO_HOME:-$HOME/.cargo}/env"
  fi
  if ! rust_is_enough; then
    mkdir -p .tidemill
    echo stable >.tidemill/toolchain
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    export RUSTUP_TOOLCHAIN=stable
    rust_is_enough || stop "rustc is $(rust_version), and $needed or newer is needed" "rustup update stable"
    line -- "make uses the toolchain 'stable', because the default one is older than $needed"
  fi
fi
for component in rustfmt clippy; do
  case $component in rustfmt) command=fmt ;; *) command=$component ;; esac
  if cargo "$command" --version >/dev/null 2>&1; then
    line ok "$component"
  else
    line get "$component: make test checks with it"
    rustup component add "$component" >/dev/null 2>&1 ||
      stop "cannot add $component to the Rust toolchain" "rustup component add $component, or your system's package of it"
  fi
done

# --- what cargo builds from
if cargo fetch --locked --offline >/dev/null 2>&1; then
  line ok "crates of Cargo.lock"
else
  line get "crates of Cargo.lock: afterwards cargo needs no network"
  cargo fetch --locked --quiet ||
    stop "cargo could not fetch the crates of Cargo.lock (its words are above)" \
      "if it speaks of the lock file: a change to a Cargo.toml is not in Cargo.lock yet; run cargo check" \
      "if it speaks of the network: cargo reads https_proxy and its own config file"
fi
if cargo nextest --version >/dev/null 2>&1; then
  line ok "cargo-nextest $(cargo nextest --version | awk 'NR == 1 {print $2}')"
else
  line -- "cargo-nextest is not there: scripts/run_tests.py runs the tests the same way"
fi

# --- libraries that are loaded when they are needed
# library NAME FILE VARIABLE PURPOSE WITHOUT
library() {
  if [ -n "${!3:-}" ]; then
    line ok "$1: yours, from $3"
    return
  fi
  local words had=yes
  if [ ! -s "$2" ]; then
    had=no
    line get "${2##*/}: $4"
  fi
  if words=$(scripts/fetch-library.sh "$1" 2>&1); then
    [ $had = no ] || line ok "${2##*/}"
  elif [ "${CI:-}" = true ]; then
    stop "$words" "a CI run tests with it, so this is an error here"
  else
    line '!!' "$words"
    line -- "$5"
  fi
}
library onnxruntime "$onnxruntime" TIDEMILL_ONNXRUNTIME "runs the models faster than the built-in backend (24 MB)" \
  "models run on the built-in backend rten; the tests that compare the two backends need the library"
library highs "$highs" TIDEMILL_HIGHS "proves plans that the built-in solver leaves open (5 MB)" \
  "plans are made with the built-in solver microlp; the tests that compare the two solvers need the library"
library ffmpeg "$ffmpeg" TIDEMILL_FFMPEG "reads and writes videos (30 MB)" \
  "workflows with videos are refused; the tests of videos need the program"
library avcodec "$avcodec" TIDEMILL_AVCODEC "decodes videos inside a process (61 MB to fetch, 32 MB kept)" \
  "videos are decoded by the program ffmpeg; the tests of tidemill-avcodec need the libraries"
