#!/usr/bin/env bash
# Checks the RESP API with ioredis, which npm installs under target/tools.
# Usage: ioredis.sh PATH-OF-THE-SPILLGATE-BINARY
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tools=$root/target/tools/node
password=0123456789abcdef0123456789abcdef
servers=()

main() {
  local binary=${1:?"usage: ioredis.sh PATH-OF-THE-SPILLGATE-BINARY"}
  if ! command -v npm > /dev/null; then
    echo "left out: ioredis: there is no npm (Debian: apt-get install npm)"
    return
  fi
  mkdir -p "$tools"
  [ -d "$tools/node_modules/ioredis" ] || npm install --silent --prefix "$tools" ioredis@5
  # Beside the packages, where node looks for them.
  cp "$root/crates/spillgate-cli/tests/clients/ioredis.mjs" "$tools/story.mjs"

  scratch=$(mktemp -d)
  trap end EXIT
  echo $password > "$scratch/password"
  local open guarded
  start open "$binary"
  start guarded env SPILLGATE_SERVER__RESP__PASSWORD_FILE="$scratch/password" "$binary"
  timeout 30 node "$tools/story.mjs" "$(port open)" "$(port guarded)" $password || fail "ioredis was answered otherwise"
  echo "ioredis: RESP, pipelines, denials and passwords, by tests/clients/ioredis.mjs"
}

start() {
  local name=$1
  shift
  : > "$scratch/$name"
  env SPILLGATE_SERVER__HTTP=off SPILLGATE_SERVER__GRPC__ADDRESS=off SPILLGATE_SERVER__ADMIN=off "$@" serve --resp 127.0.0.1:0 2> "$scratch/$name" &
  servers+=($!)
  local deadline=$((SECONDS + 10))
  until [ -n "$(port "$name")" ]; do
    [ $SECONDS -lt $deadline ] || fail "the server does not start: $(cat "$scratch/$name")"
    sleep 0.05
  done
}

# Reads the port from the first line of the log.
port() {
  sed -n 's/.*RESP on [^,]*:\([0-9]*\).*/\1/p' "$scratch/$1"
}

end() {
  kill "${servers[@]}" 2> /dev/null || true
  wait
  rm -rf "$scratch"
}

fail() {
  echo "ioredis: $*" >&2
  exit 1
}

main "$@"
