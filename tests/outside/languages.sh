#!/usr/bin/env bash
# Runs the snippets of docs/learn/other-languages.md in languages without a compiler in the gate: Go, over HTTP.
# Usage: languages.sh PATH-OF-THE-SPILLGATE-BINARY
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
page=$root/docs/learn/other-languages.md
server=

main() {
  local binary=${1:?"usage: languages.sh PATH-OF-THE-SPILLGATE-BINARY"}
  if ! command -v go > /dev/null; then
    echo "left out: the Go of docs/learn/other-languages.md: there is no go (Debian: apt-get install golang-go)"
    return
  fi
  scratch=$(mktemp -d)
  trap end EXIT
  cat > "$scratch/limits.toml" <<'TOML'
[[rule]]
name = "login"
match = { route = "/login" }
key = ["ip"]
limits = ["1/hour"]
TOML
  : > "$scratch/log"
  env SPILLGATE_SERVER__GRPC__ADDRESS=off SPILLGATE_SERVER__RESP__ADDRESS=off SPILLGATE_SERVER__ADMIN=off \
    "$binary" serve --config "$scratch/limits.toml" --http 127.0.0.1:0 2> "$scratch/log" &
  server=$!
  local deadline=$((SECONDS + 10))
  until [ -n "$(port)" ]; do
    [ $SECONDS -lt $deadline ] || fail "the server does not start: $(cat "$scratch/log")"
    sleep 0.05
  done

  awk '/^```go$/ { inside = 1; next } inside && /^```$/ { exit } inside' "$page" |
    sed "s/localhost:8080/127.0.0.1:$(port)/" > "$scratch/main.go"
  local first second
  first=$(run)
  second=$(run)
  [ -z "$first" ] || fail "the first call printed: $first"
  [[ $second =~ ^come\ back\ in\ 3[56][0-9]{5}\ ms$ ]] || fail "the second call printed: $second"
  echo "go: checks over HTTP and prints when to retry, as docs/learn/other-languages.md shows"
}

run() {
  env GO111MODULE=off GOFLAGS= no_proxy='*' timeout 120 go run "$scratch/main.go"
}

# Reads the port from the first line of the log.
port() {
  sed -n 's/.*HTTP on http:[^,]*:\([0-9]*\).*/\1/p' "$scratch/log"
}

end() {
  if [ -n "$server" ]; then
    kill "$server" 2> /dev/null || true
    wait
  fi
  rm -rf "$scratch"
}

fail() {
  echo "languages: $*" >&2
  exit 1
}

main "$@"
