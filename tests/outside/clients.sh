#!/usr/bin/env bash
# The clients in clients/: conformance suite against the server, examples behind real frameworks, type checks, packages.
# Usage: clients.sh PATH-OF-THE-SPILLGATE-BINARY [LANGUAGE...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
clients=$root/clients
. "$root/tests/outside/toolchains.sh"
languages=(python typescript go)

# The packages of a language's tests, installed below target/tools.
python_packages=(build==1.6.1 setuptools==84.2.1 mypy==2.4.1 ruff==0.17.6 h11==0.16.0 uvicorn==0.54.0 fastapi==0.165.0 starlette==1.10.0 flask==3.1.3 django==5.2.19)
node_packages=(typescript@7.0.2 express@5 fastify@5 hono@4 @hono/node-server@2 @biomejs/biome@2 @types/express@5 @types/node@22)

main() {
  SPILLGATE_BIN=$(realpath "${1:?"usage: clients.sh PATH-OF-THE-SPILLGATE-BINARY [LANGUAGE...]"}")
  export SPILLGATE_BIN SPILLGATE_CONFORMANCE=$clients/conformance
  shift
  [ $# -eq 0 ] || languages=("$@")
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  # Before the tests, so that a download slows none of them.
  need_python "build, django, fastapi, flask, h11, mypy, ruff, setuptools, starlette, uvicorn" "${python_packages[@]}" || true

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
  if ! need_node "${node_packages[@]}"; then
    echo "left out: $missing"
    return
  fi
  typescript_client "$scratch/typescript"
  cd "$scratch/typescript"
  local bin=$tools/node/node_modules/.bin
  "$bin/biome" ci --colors=off
  node test/extract.mjs README.md test/examples
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
  if ! need_go; then
    echo "left out: $missing"
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

fail() {
  echo "clients: $*" >&2
  exit 1
}

main "$@"
