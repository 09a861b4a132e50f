#!/usr/bin/env bash
# What a request of a small service costs without a limiter, with Spillgate's clients, and with the usual limiters of the
# frameworks; all count in one Redis. Prints a table. Go has no usual limiter with Redis that could be installed here.
# Usage: cost.sh PATH-OF-THE-SPILLGATE-BINARY [SERVICE...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/tests/outside/toolchains.sh"
services=(express fastapi flask net/http)

python_packages=(fastapi==0.165.0 flask==3.1.3 h11==0.16.0 uvicorn==0.54.0 gunicorn==27.0.1 slowapi==0.1.10
  flask-limiter==4.1.1 redis==8.1.0)
node_packages=(typescript@7.0.2 express@5 express-rate-limit@8 rate-limit-redis@4 ioredis@5 @types/node@22)

main() {
  binary=$(realpath "${1:?"usage: cost.sh PATH-OF-THE-SPILLGATE-BINARY [SERVICE...]"}")
  shift
  [ $# -eq 0 ] || services=("$@")
  if ! have redis-server; then
    echo "left out: there is no redis-server (Debian: apt-get install redis-server)"
    return
  fi
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT

  local service can_run=()
  for service in "${services[@]}"; do
    case $service in
      express) make_node ;;
      net/http) make_go ;;
      *) make_python ;;
    esac && can_run+=("$service") || echo "left out: $service: $missing"
  done
  [ ${#can_run[@]} -gt 0 ] || return 0
  python3 "$root/tests/outside/cost/measure.py" "$binary" "${can_run[@]}"
}

# Each of these builds its part, or leaves in `missing` what it lacks.

make_node() {
  need_node "${node_packages[@]}" || return
  typescript_client "$scratch/typescript" || fail "the TypeScript client does not compile"
  cp "$root/tests/outside/cost/express.mjs" "$scratch/typescript"
  export NODE_APPS=$scratch/typescript
}

make_python() {
  [ -z "${PYTHON:-}" ] || return 0
  need_python "fastapi, flask_limiter, gunicorn, h11, redis, slowapi, uvicorn" "${python_packages[@]}" || return
  export PYTHON=$python PYTHON_CLIENT=$root/clients/python/src
}

make_go() {
  need_go || return
  go_program "$root/tests/outside/cost/go" "$scratch/cost" || fail "the Go service does not compile"
  export GO_APP=$scratch/cost
}

fail() {
  echo "cost: $*" >&2
  exit 1
}

main "$@"
