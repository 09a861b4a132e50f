#!/usr/bin/env bash
# Builds the programs in examples/, and runs each on a real Redis; rust_adapters.py has the checks.
# Usage: rust_adapters.sh [PATH-OF-THE-SPILLGATE-BINARY [EXAMPLE...]]; no example uses the binary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

examples=(actix-web reqwest-middleware metrics opentelemetry)
export CARGO_TARGET_DIR=$PWD/target/examples

main() {
  [ $# -le 1 ] || examples=("${@:2}")
  cargo fmt --manifest-path examples/Cargo.toml --all --check
  local example packages=()
  for example in ${examples[*]}; do
    packages+=(-p "$example-example")
  done
  fetch
  cargo build --manifest-path examples/Cargo.toml --locked --quiet "${packages[@]}"
  python3 tests/outside/rust_adapters.py "$CARGO_TARGET_DIR/debug" ${examples[*]}
}

# Downloads the crates. Without a network there is nothing to test.
fetch() {
  local output
  output=$(cargo fetch --manifest-path examples/Cargo.toml --locked 2>&1) && return
  if grep -qiE 'could not resolve|could not connect|timed out|offline' <<< "$output"; then
    echo "left out: ${examples[*]}: crates.io is out of reach"
    exit
  fi
  echo "$output" >&2
  exit 1
}

main "$@"
