#!/usr/bin/env bash
# Checks that all code compiles for 64-bit ARM (Raspberry Pi, Jetson, Graviton). Nothing of Rust is linked, but two dependencies compile C while
# they are built (ring, zstd-sys): that wants a C compiler for that target, and Rust's standard library for it. rustup fetches the latter once (about
# 25 MB), apt-get the former (about 100 MB with its headers).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

target=aarch64-unknown-linux-gnu
compiler=aarch64-linux-gnu-gcc
packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
patience=600 # seconds

# Both are looked for before anything is fetched, so that everything that is missing is told at once.
library=$(rustc --print sysroot)/lib/rustlib/$target/lib
has_library() { compgen -G "$library/libstd-*.rlib" >/dev/null; }
has_compiler() { echo '#include <stdlib.h>' | "$compiler" -x c -c -o /dev/null - 2>/dev/null; }

missing=()
if ! has_library; then
  if command -v rustup >/dev/null; then
    line get "Rust's standard library for $target"
    timeout "$patience" rustup target add "$target" >/dev/null 2>&1 || true
  fi
  has_library || missing+=("Rust's standard library for $target, of this very compiler ($(rustc --version)): rustup target add $target, where its server is reached; Debian's package libstd-rust-dev is of another version")
fi
if ! has_compiler; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    line get "$packages: ring and zstd-sys compile C"
    # shellcheck disable=SC2086 # two words
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages >/dev/null 2>&1 || true
  fi
  has_compiler || missing+=("a C compiler for $target with libc's headers: apt-get install $packages")
fi
[ ${#missing[@]} = 0 ] || stop "not checked for $target: what it takes is not on this machine" "${missing[@]}"

cargo check --workspace --all-targets --locked --target "$target"
line ok "everything compiles for $target"
