#!/usr/bin/env bash
# Builds the programs in examples/, and runs each on a real Redis; rust_adapters.py has the checks.
# Usage: rust_adapters.sh [PATH-OF-THE-SPILLGATE-BINARY [EXAMPLE...]]; no example uses the binary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tests/tools.sh

examples=(actix-web pingora reqwest-middleware metrics opentelemetry)
export CARGO_TARGET_DIR=$PWD/target/examples
# The library that pingora compresses with is built by cmake.
cmake=cmake==4.4.4

main() {
  [ $# -le 1 ] || examples=("${@:2}")
  PATH=$PATH:$PWD/$tools/python/bin
  if [[ " ${examples[*]} " == *' pingora '* ]] && ! have cmake && ! install_cmake; then
    echo "left out: pingora: there is no cmake (Debian: apt-get install cmake)"
    examples=("${examples[@]/pingora/}")
  fi
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

install_cmake() {
  [ -x $tools/python/bin/pip ] || python3 -m venv $tools/python || return
  timeout 300 $tools/python/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: $cmake
}

main "$@"
