#!/usr/bin/env bash
# Checks that the committed code of Envoy's protocol is what crates/spillgate-server/proto/ generates.
# Usage: generated.sh [PATH-OF-THE-SPILLGATE-BINARY]; it does not use the binary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

manifest=crates/spillgate-server/proto/generate/Cargo.toml
export CARGO_TARGET_DIR=$PWD/target/generate

main() {
  cargo fmt --manifest-path $manifest --check
  fetch
  cargo run --manifest-path $manifest --locked --quiet -- --check
  echo "generated: the code of Envoy's protocol is fresh"
}

# Downloads the crates. Without a network there is nothing to test.
fetch() {
  local output
  output=$(cargo fetch --manifest-path $manifest --locked 2>&1) && return
  if grep -qiE 'could not resolve|could not connect|timed out|offline' <<< "$output"; then
    echo "left out: generated: crates.io is out of reach"
    exit
  fi
  echo "$output" >&2
  exit 1
}

main "$@"
