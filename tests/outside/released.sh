#!/usr/bin/env bash
# Installs a published release in each way that the documents show, with the tools that this machine has, and uses it.
# Usage: released.sh VERSION
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
page=https://github.com/spillgate/spillgate/releases/download/v${1:?"usage: released.sh VERSION"}

main() {
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  script "$1"
  formula "$1"
  crates "$1"
  python_package "$1"
  npm_package "$1"
  go_module "$1"
}

script() {
  curl -fsSL "$page/install.sh" | VERSION=$1 PREFIX=$scratch sh
  [ "$("$scratch/bin/spillgate" --version)" = "spillgate $1" ]
  "$root/tests/outside/first-command.sh" "$scratch/bin/spillgate"
}

# From a tap of this machine, since Homebrew installs no formula from a file.
formula() {
  PATH=$PATH:/home/linuxbrew/.linuxbrew/bin
  have brew || return 0
  brew tap-new --no-git release/check
  curl -fsSL -o "$(brew --repository release/check)/Formula/spillgate.rb" "$page/spillgate.rb"
  brew install release/check/spillgate
  brew test release/check/spillgate
}

crates() {
  have cargo || return 0
  cargo new --quiet --lib "$scratch/crate"
  (cd "$scratch/crate" && again cargo add --quiet "spillgate@=$1" && cargo check --quiet)
  again cargo info --quiet --registry crates-io "spillgate-cli@$1"
}

python_package() {
  have python3 || return 0
  python3 -m venv "$scratch/python"
  again "$scratch/python/bin/pip" install --quiet "spillgate==$1"
  "$scratch/python/bin/python" -c 'import spillgate; spillgate.Client("http://127.0.0.1:8080")'
}

npm_package() {
  have npm || return 0
  again npm install --silent --prefix "$scratch/node" "spillgate@$1"
  (cd "$scratch/node" && node --input-type=module -e 'import { Spillgate } from "spillgate"; new Spillgate({ url: "http://127.0.0.1:8080" });')
}

go_module() {
  have go || return 0
  mkdir "$scratch/go"
  cd "$scratch/go"
  go mod init example
  again go get "github.com/spillgate/spillgate/clients/go@v$1"
  go vet github.com/spillgate/spillgate/clients/go
}

# A registry shows a new version to all of its users within minutes.
again() {
  local tries
  for tries in 1 2 3 4 5 6 7 8 9 10; do
    if "$@"; then return; fi
    sleep 30
  done
  echo "released: failed $tries times: $*" >&2
  return 1
}

have() {
  command -v "$1" > /dev/null || { echo "left out: there is no $1"; return 1; }
}

main "$@"
