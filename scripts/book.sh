#!/usr/bin/env bash
# Builds the book from docs/ into target/book.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

tool mdbook 0.5.4 "turns docs/ into a book"
"$tools/bin/mdbook" build docs
line ok "open target/book/index.html"
