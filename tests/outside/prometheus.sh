#!/usr/bin/env bash
# A real Prometheus scrapes the admin API, and evaluates the alerts.
# Usage: prometheus.sh PATH-OF-THE-SPILLGATE-BINARY
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
binary=${1:?"usage: prometheus.sh PATH-OF-THE-SPILLGATE-BINARY"}

main() {
  if ! command -v prometheus > /dev/null; then
    echo "left out: there is no prometheus; ./check --full installs it"
    return
  fi
  scratch=$(mktemp -d)
  trap end EXIT
  printf '[[rule]]\nname = "api"\nkey = ["user"]\nlimits = ["3/day"]\n' > "$scratch/rules.toml"
  SPILLGATE_SERVER__RESP__ADDRESS=off SPILLGATE_SERVER__GRPC__ADDRESS=off "$binary" serve --config "$scratch/rules.toml" \
    --http 127.0.0.1:0 --admin 127.0.0.1:0 2> "$scratch/log" &
  server=$!
  until_true 10 "the server does not start" logged_admin
  local api=$(address HTTP) port=$((20000 + RANDOM % 20000))
  for _ in 1 2 3 4 5; do
    curl -sf "http://$api/v1/check" -d '{"attributes": {"user": "ann"}}' > /dev/null
  done
  cat > "$scratch/prometheus.yml" <<YAML
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [$root/deploy/prometheus/alerts.yml]
scrape_configs:
  - job_name: spillgate
    static_configs: [{targets: ["$(address admin)"]}]
YAML
  prometheus --config.file="$scratch/prometheus.yml" --storage.tsdb.path="$scratch/data" \
    --web.listen-address="127.0.0.1:$port" --log.level=error &
  prometheus=$!
  until_true 60 "nothing was scraped" scraped "$port"
  curl -sf "http://127.0.0.1:$port/api/v1/rules" | grep -q '"health":"ok"' || fail "the alerts are not evaluated"
  ! curl -sf "http://127.0.0.1:$port/api/v1/rules" | grep -q '"health":"err"' || fail "an alert cannot be evaluated"
  echo "prometheus: scraped 3 admissions and 2 denials, and evaluates the alerts"
}

scraped() {
  query "$1" 'spillgate_decisions_total{rule="api",mode="enforce",decision="denied",limit="0"}' | grep -q '"2"\]' &&
    query "$1" 'spillgate_decisions_total{rule="api",decision="allowed"}' | grep -q '"3"\]'
}

query() {
  curl -sf -G "http://127.0.0.1:$1/api/v1/query" --data-urlencode "query=$2"
}

logged_admin() {
  [ -n "$(address admin)" ]
}

# Reads an address from the first line of the log.
address() {
  sed -n "s/.*$1 on http:\/\/\([^,]*\),.*/\1/p" "$scratch/log"
}

until_true() {
  local deadline=$((SECONDS + $1)) why=$2
  until "${@:3}"; do
    [ $SECONDS -lt $deadline ] || fail "$why"
    sleep 0.2
  done
}

end() {
  local process
  for process in "${prometheus:-}" "${server:-}"; do
    [ -z "$process" ] || kill "$process" 2> /dev/null || true
  done
  wait
  rm -rf "$scratch"
}

fail() {
  echo "prometheus: $*" >&2
  exit 1
}

main
