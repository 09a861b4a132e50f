#!/usr/bin/env bash
# Bursts of up to 5,000 requests at once at a limit of 150, against an application of each framework, with a healthy
# server and with a faulty one. Fails unless exactly 150 are admitted, none of them without the server.
# Usage: burst.sh PATH-OF-THE-SPILLGATE-BINARY [--short] [FRAMEWORK...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/tests/outside/toolchains.sh"
short=()
frameworks=(express fastify hono fastapi starlette flask flask-gunicorn django net/http)

python_packages=(fastapi==0.165.0 starlette==1.10.0 flask==3.1.3 django==5.2.19 h11==0.16.0 uvicorn==0.54.0 gunicorn==27.0.1
  waitress==3.0.2)
node_packages=(typescript@7.0.2 express@5 fastify@5 hono@4 @hono/node-server@2 @types/express@5 @types/node@22)

main() {
  binary=$(realpath "${1:?"usage: burst.sh PATH-OF-THE-SPILLGATE-BINARY [--short] [FRAMEWORK...]"}")
  shift
  if [ "${1:-}" = --short ]; then
    short=(--short)
    shift
  fi
  [ $# -eq 0 ] || frameworks=("$@")
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  # Each connection is a descriptor.
  ulimit -n "$(ulimit -Hn)"

  local framework can_run=()
  for framework in "${frameworks[@]}"; do
    case $framework in
      express | fastify | hono) make_node ;;
      net/http) make_go ;;
      *) make_python ;;
    esac && can_run+=("$framework") || echo "left out: $framework: $missing"
  done
  [ ${#can_run[@]} -gt 0 ] || return 0
  python3 "$root/tests/outside/burst/run.py" "$binary" "${short[@]}" "${can_run[@]}"
}

# Each of these builds its part once, or leaves in `missing` what it lacks.

make_node() {
  [ -z "${NODE_APPS:-}" ] || return 0
  need_node "${node_packages[@]}" || return
  typescript_client "$scratch/typescript" || fail "the TypeScript client does not compile"
  cp -r "$root/tests/outside/burst/node" "$scratch/typescript/burst"
  export NODE_APPS=$scratch/typescript/burst
}

make_python() {
  [ -z "${PYTHON:-}" ] || return 0
  need_python "django, fastapi, flask, gunicorn, h11, starlette, uvicorn, waitress" "${python_packages[@]}" || return
  # A copy, so that an edit during a long run has no effect on it.
  cp -r "$root/clients/python/src" "$scratch/python"
  export PYTHON=$python PYTHON_CLIENT=$scratch/python
}

make_go() {
  [ -z "${GO_APP:-}" ] || return 0
  need_go || return
  go_program "$root/tests/outside/burst/go" "$scratch/burst" || fail "the Go application does not compile"
  export GO_APP=$scratch/burst
}

fail() {
  echo "burst: $*" >&2
  exit 1
}

main "$@"
