#!/usr/bin/env bash
# The dashboard in a real chromium, under load, with the store killed and back.
# Usage: dashboard.sh PATH-OF-THE-SPILLGATE-BINARY [--pictures FOLDER]
set -euo pipefail

exec python3 "$(dirname "${BASH_SOURCE[0]}")/dashboard/drive.py" "$@"
