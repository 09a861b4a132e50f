#!/usr/bin/env bash
# Tries every spelling of a limited path behind nginx, which must be installed, before Express, Starlette (with h11),
# net/http (its router and its file server), a router that uses Node's `new URL()`, and axum. Leaves out those whose language is missing.
# Usage: paths.sh PATH-OF-THE-SPILLGATE-BINARY
set -euo pipefail
binary=$(realpath "${1:?"usage: paths.sh PATH-OF-THE-SPILLGATE-BINARY"}")
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

apps=tests/outside/proxies/apps
tools=$PWD/target/tools/paths
mkdir -p "$tools"
servers=()

if command -v npm > /dev/null; then
  cp $apps/express.js "$tools/express.mjs"
  npm install --silent --no-audit --no-fund --prefix "$tools" express@5
  servers+=("express=node $tools/express.mjs" "new URL()=node $apps/new_url.mjs")
fi
if python3 -m venv "$tools/python" && "$tools/python/bin/pip" install --quiet --disable-pip-version-check starlette uvicorn; then
  servers+=("starlette=$tools/python/bin/python $apps/starlette_app.py")
fi
if command -v go > /dev/null; then
  go build -o "$tools/net_http" $apps/net_http.go
  servers+=("net/http=$tools/net_http router" "net/http files=$tools/net_http files")
fi
mkdir -p "$tools/axum"
cat > "$tools/axum/Cargo.toml" << END
[package]
name = "paths-app"
version = "0.0.0"
edition = "2024"

[[bin]]
name = "paths-app"
path = "$PWD/$apps/axum.rs"

[dependencies]
axum = "0.8"
tokio = { version = "1", features = ["macros", "net", "rt"] }

[workspace]
END
cargo build --quiet --manifest-path "$tools/axum/Cargo.toml"
servers+=("axum=$tools/axum/target/debug/paths-app")

python3 tests/outside/proxies/paths.py "$binary" "${servers[@]}"
