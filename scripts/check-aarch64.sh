#!/usr/bin/env bash
# Checks that all code compiles for 64-bit ARM (Raspberry Pi, Jetson, Graviton). Nothing is linked, so no cross
# compiler is needed; Rust's standard library for that target is, and rustup fetches it once (about 25 MB).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

target=aarch64-unknown-linux-gnu
library=$(rustc --print sysroot)/lib/rustlib/$target
if [ ! -d "$library" ]; then
  command -v rustup >/dev/null ||
    stop "Rust's standard library for $target is missing, and there is no rustup to fetch it" \
      "install your system's package of it into $library"
  line get "Rust's standard library for $target"
  rustup target add "$target" >/dev/null 2>&1 ||
    stop "rustup could not fetch the standard library for $target" "check the network: rustup target add $target"
fi
cargo check --workspace --all-targets --locked --target "$target"
line ok "everything compiles for $target"
