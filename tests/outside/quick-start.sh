#!/usr/bin/env bash
# Types docs/learn/rust-service.md: every `sh` block in order in one shell. Each line of the `text` block that follows
# must be in its output. The ports are replaced, `cargo run` runs the built program, and the folder is new.
# Usage: quick-start.sh PATH-OF-THE-SPILLGATE-BINARY PATH-OF-THE-EXAMPLE
set -euo pipefail

page=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../docs/learn" && pwd)/rust-service.md
seconds_max=60

main() {
  [ $# -eq 2 ] || fail "usage: quick-start.sh PATH-OF-THE-SPILLGATE-BINARY PATH-OF-THE-EXAMPLE"
  binary=$(realpath "$1") example=$(realpath "$2")
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  cd "$folder"
  script > typed.sh
  local status=0
  # A command that waits for ever is killed, with all processes that it started.
  timeout --kill-after=5 $seconds_max bash -m typed.sh > output 2> errors || status=$?
  [ $status -eq 0 ] || fail "it ended with $status in: $(tail -n 30 output errors ./*.log 2> /dev/null)"
  compare
  echo "the quick start: $(grep -c '^=== ' output) blocks typed, and each prints what the page promises$left_out"
}

# Prints the page's blocks, each followed by a line that marks the end of its output.
script() {
  cat <<SHELL
set -euo pipefail
curl() { command curl --noproxy '*' --max-time 10 "\$@"; }
# It replaces the shell, so that ending the job ends the server.
redis-server() { exec redis-server "\$@" --bind 127.0.0.1; }
cargo() {
  case "\$*" in
    *'--example quick_start'*) shift 6; PORT=$(port 3000) exec "$example" "\$@" ;;
    'run --release -- serve'*) shift 3; exec "$binary" "\$@" --http 127.0.0.1:$(port 8080) --admin 127.0.0.1:$(port 8082) --grpc off --resp off ;;
    'run --release -- '*) shift 3; "$binary" "\$@" ;;
    *) echo "the page runs cargo \$*" >&2; exit 1 ;;
  esac
}
trap 'set +e; kill \$(jobs -p) 2> /dev/null; wait' EXIT
SHELL
  left_out=''
  local expression='' default
  for default in 3000 8080 8082 6379 9090; do
    expression+="s/\\b$default\\b/$(port $default)/g;"
  done
  awk '/^```sh$/ { inside = 1; next } inside && /^```$/ { inside = 0; print "echo; echo === " ++block; next } inside' "$page" |
    sed -E "$expression" | without_prometheus
}

# Leaves out the block about Prometheus if that is not installed.
without_prometheus() {
  if command -v prometheus > /dev/null; then
    cat
  else
    awk '/^cat > alert.yml/ { skip = 1 } !skip; /^echo; echo ===/ { if (skip) print; skip = 0 }'
  fi
}

# Prints a free port for a port of the page, always the same one.
port() {
  local file=$folder/port-$1
  if [ ! -e "$file" ]; then
    local port
    while :; do
      port=$((10000 + RANDOM % 20000))
      (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null || break
    done
    echo "$port" > "$file"
  fi
  cat "$file"
}

compare() {
  python3 - "$page" output "$(command -v prometheus || true)" <<'PYTHON'
import re, sys
page, output, prometheus = open(sys.argv[1]).read(), open(sys.argv[2]).read().replace("\r", ""), sys.argv[3]
parts = re.split(r"\n=== \d+\n", output)
blocks = re.findall(r"^```(sh|text)\n(.*?)^```$", page, re.M | re.S)
number = 0
promised = []
for kind, text in blocks:
    if kind == "sh":
        number += 1
        promised.append(("alert.yml" in text, []))
    else:
        promised[-1][1].extend(line for line in text.splitlines() if line)
assert len(parts) == number + 1, f"{number} blocks, and {len(parts) - 1} were typed"
for (alert, lines), part in zip(promised, parts):
    if alert and not prometheus:
        continue
    for line in lines:
        # A second may have passed between calls.
        pattern = re.sub(r"(t=|after:\\ )\d+", r"\1\\d+", re.escape(line))
        assert re.search(pattern, part, re.M), f"the page promises {line!r}, and the output is:\n{part}"
assert sum(len(lines) for _, lines in promised) > 10
PYTHON
  command -v prometheus > /dev/null || left_out=', except the alert: prometheus is not installed'
}

fail() {
  echo "quick-start: $*" >&2
  exit 1
}

main "$@"
