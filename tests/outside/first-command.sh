#!/usr/bin/env bash
# Runs the README's first command as a new user would: it answers, allows five checks, denies the sixth, and ends on
# SIGTERM.
# Usage: first-command.sh PATH-OF-THE-SPILLGATE-BINARY
set -euo pipefail

readme=$(dirname "${BASH_SOURCE[0]}")/../../README.md
body='{"key":"u1","limit":{"quota":"5/minute"}}'
seconds_max=10

main() {
  local binary=${1:?"usage: first-command.sh PATH-OF-THE-SPILLGATE-BINARY"}
  local arguments words
  arguments=$(server_arguments)
  read -r -a words <<< "$arguments"
  log=$(mktemp)
  server=
  trap end EXIT

  start "$binary" "${words[@]}"
  local call answer
  for call in 1 2 3 4 5; do
    answer=$(ask)
    [ $call -ne 1 ] || expect_answer_of_readme "$answer"
    expect_allowed "$call" "$answer"
  done
  answer=$(ask)
  expect_denied "$answer"
  stop
  echo "the README's first command (${words[*]}) allows five, denies the sixth, and ends on SIGTERM"
}

# Prints the arguments behind ` -- ` in the first `cargo run` of the README's first sh block, without a prompt,
# continued lines, a comment or an `&` around it. The address is replaced.
server_arguments() {
  [ -r "$readme" ] || fail "there is no README.md"
  local command
  command=$(awk '/^```(sh|bash|shell|console)[[:space:]]*$/ { inside = 1; next } inside && /^```/ { exit } inside' "$readme" |
    sed -e ':join' -e '/\\$/ { N; s/\\\n[[:space:]]*//; b join' -e '}' |
    grep -m 1 -E '^[[:space:]]*(\$ )?cargo run ' || true)
  [ -n "$command" ] || fail "README.md: its first \`\`\`sh block holds no 'cargo run' line"
  case $command in
    *' -- serve'*) ;;
    *) fail "README.md: its first command is '$command', expected 'cargo run --release -- serve'" ;;
  esac
  sed -E -e 's/^.* -- +//' -e 's/[[:space:]]+#.*$//' -e 's/[[:space:]]*&[[:space:]]*$//' -e 's/--http[ =][^ ]+//' <<< "$command"
}

# Tries another port if another process took the first one between the search and the bind.
start() {
  for _ in 1 2 3 4 5; do
    port=$(free_port)
    "$@" --http "127.0.0.1:$port" --grpc off --resp off --admin off > "$log" 2>&1 &
    server=$!
    if listens; then
      return
    fi
    grep -qi 'in use' "$log" || break
  done
  fail "it ended, or did not answer on its port within $seconds_max s; its log: $(cat "$log")"
}

free_port() {
  local port
  while :; do
    port=$((10000 + RANDOM % 12000))
    (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null || break
  done
  echo $port
}

# Any HTTP answer suffices, so this must not spend the key's quota.
listens() {
  local deadline=$((SECONDS + seconds_max))
  while [ $SECONDS -lt $deadline ]; do
    kill -0 "$server" 2> /dev/null || return 1
    curl -s --noproxy '*' -o /dev/null "localhost:$port/" && return
    sleep 0.05
  done
  return 1
}

ask() {
  curl -s --noproxy '*' --max-time $seconds_max "localhost:$port/v1/check" -d "$body" || fail "no answer to a check"
}

# The README's json block must be the whole answer of the first call.
expect_answer_of_readme() {
  local shown
  shown=$(awk '/^```json$/ { inside = 1; next } inside && /^```/ { exit } inside' "$readme")
  [ "$shown" = "$1" ] || fail "README.md shows the answer $shown, and it is $1"
}

expect_allowed() {
  grep -qE '"allowed" ?: ?true' <<< "$2" || fail "call $1 of 5 was not allowed: $2"
}

expect_denied() {
  grep -qE '"reason" ?: ?"limit-exceeded"' <<< "$1" || fail "the sixth call was not denied: $1"
  grep -qE '"allowed" ?: ?true' <<< "$1" && fail "the sixth call was allowed: $1"
  local waits wait
  waits=$(grep -oE '"retry_after_ms" ?: ?[0-9]+' <<< "$1" | grep -oE '[0-9]+$') || fail "the denial names no retry_after_ms: $1"
  for wait in $waits; do
    [ "$wait" -ge 1 ] && [ "$wait" -le 12000 ] || fail "retry_after_ms is $wait, expected 1 to 12000: $1"
  done
}

stop() {
  local status=0 pid=$server deadline=$((SECONDS + seconds_max))
  kill -TERM "$pid"
  while kill -0 "$pid" 2> /dev/null; do
    [ $SECONDS -lt $deadline ] || fail "SIGTERM did not end it within $seconds_max s; its log: $(cat "$log")"
    sleep 0.05
  done
  wait "$pid" || status=$?
  server=
  [ $status -eq 0 ] || fail "SIGTERM ended it with status $status, expected 0; its log: $(cat "$log")"
}

end() {
  if [ -n "$server" ]; then
    kill -KILL "$server"
    wait "$server"
  fi 2> /dev/null
  rm -f "$log"
}

fail() {
  echo "first-command: $*" >&2
  exit 1
}

main "$@"
