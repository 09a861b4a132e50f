#!/usr/bin/env bash
# Runs deploy/install.sh as its users do, on releases that this machine serves: with every shell that is here, as other
# machines, and with downloads that are wrong.
# Usage: install.sh [ARCHIVE VERSION], where the archive is one that deploy/pack made for this machine. It is installed too.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
targets=(x86_64-unknown-linux-musl aarch64-unknown-linux-musl x86_64-apple-darwin aarch64-apple-darwin)

main() {
  scratch=$(mktemp -d)
  server=
  trap end EXIT
  release 9.8.7
  release 9.9.0
  release 9.9.1
  mkdir "$scratch/releases/latest"
  ln -s ../download/v9.9.0 "$scratch/releases/latest/download"
  local archive
  for archive in "$scratch"/releases/download/v9.9.1/*.tar.gz; do echo broken >> "$archive"; done
  [ $# -eq 0 ] || real "$@"
  serve
  tools

  local shell shells=()
  for shell in sh bash dash 'busybox sh' zsh; do
    command -v "${shell%% *}" > /dev/null || continue
    shells+=("${shell// /-}")
    installs "$shell" ''
  done
  replaces
  as_other_machines
  refuses
  [ $# -eq 0 ] || { installs sh "$2"; "$scratch/prefix/bin/spillgate" --version > /dev/null; }
  echo "install.sh: ${shells[*]}; ${#targets[@]} kinds of machine; it refuses wrong checksums, unknown machines and missing releases"
}

# Programs that print their version and target.
release() {
  local target folder=$scratch/releases/download/v$1
  mkdir -p "$folder"
  for target in "${targets[@]}"; do
    printf '#!/bin/sh\n[ "$1" = --version ] && echo "spillgate %s for %s" || echo "{}"\n' "$1" "$target" > "$scratch/program"
    chmod 755 "$scratch/program"
    SOURCE_DATE_EPOCH=0 "$root/deploy/pack" "$scratch/program" "$1" "$target" "$folder"
  done
  checksums "$folder"
}

real() {
  mkdir "$scratch/releases/download/v$2"
  cp "$1" "$scratch/releases/download/v$2/"
  checksums "$scratch/releases/download/v$2"
}

# In the form of sha256sum, which macOS does not have.
checksums() {
  (cd "$1" && { sha256sum -- * 2> /dev/null || shasum -a 256 -- *; } > "$scratch/sums" && mv "$scratch/sums" SHA256SUMS)
}

serve() {
  : > "$scratch/served"
  python3 -u -m http.server 0 --bind 127.0.0.1 --directory "$scratch" > "$scratch/served" 2>&1 &
  server=$!
  local waited=0
  until grep -q '^Serving HTTP on ' "$scratch/served"; do
    [ $((waited += 1)) -lt 100 ] || fail "no server: $(cat "$scratch/served")"
    sleep 0.05
  done
  url=http://127.0.0.1:$(sed -n 's/^Serving HTTP on .* port \([0-9]*\) .*/\1/p' "$scratch/served")
}

# Other machines are this one with another uname, and without the tools of Linux.
tools() {
  local tool
  mkdir "$scratch/tools"
  for tool in sh mkdir mktemp rm sed cut tar gzip cp chmod mv cat curl shasum; do
    ln -s "$(command -v $tool)" "$scratch/tools/$tool" 2> /dev/null || true
  done
  printf '#!/bin/sh\n[ "$1" = -m ] && echo "$MACHINE" || echo "$SYSTEM"\n' > "$scratch/tools/uname"
  printf '#!/bin/sh\necho "$TRANSLATED"\n' > "$scratch/tools/sysctl"
  chmod 755 "$scratch/tools/uname" "$scratch/tools/sysctl"
}

# installs SHELL VERSION [NAME=VALUE...], by a pipe. The output is in $scratch/output.
installs() {
  env no_proxy='*' SPILLGATE_RELEASES="$url/releases" PREFIX="$scratch/prefix" VERSION="$2" "${@:3}" $1 < "$root/deploy/install.sh" \
    > "$scratch/output" 2>&1 || fail "$1, version ${2:-newest}: $(cat "$scratch/output")"
}

replaces() {
  installs sh ''
  expect "spillgate 9.9.0 for .* is installed: $scratch/prefix/bin/spillgate"
  expect 'is not on your PATH'
  installs sh 9.8.7
  installed 9.8.7
  installs sh v9.9.0 PATH="$scratch/prefix/bin:$PATH"
  installed 9.9.0
  ! grep -q PATH "$scratch/output" || fail "PATH has the folder: $(cat "$scratch/output")"
  nothing_else
}

as_other_machines() {
  local machine system processor translated target
  while read -r system processor translated target; do
    machine=(PATH="$scratch/tools" SYSTEM="$system" MACHINE="$processor" TRANSLATED="$translated")
    [ "$system" = Darwin ] && [ -e "$scratch/tools/shasum" ] || machine[0]=PATH="$scratch/tools:$PATH"
    installs sh '' "${machine[@]}"
    expect "for $target is installed"
  done <<'TEXT'
Linux amd64 0 x86_64-unknown-linux-musl
Linux arm64 0 aarch64-unknown-linux-musl
Darwin x86_64 0 x86_64-apple-darwin
Darwin x86_64 1 aarch64-apple-darwin
Darwin arm64 0 aarch64-apple-darwin
TEXT
  if ! command -v wget > /dev/null; then
    echo "left out: install.sh without curl: there is no wget"
    return
  fi
  rm "$scratch/tools/curl"
  ln -s "$(command -v wget)" "$scratch/tools/wget"
  ln -s "$(command -v sha256sum || command -v shasum)" "$scratch/tools/"
  installs sh '' PATH="$scratch/tools" SYSTEM=Linux MACHINE=x86_64
}

refuses() {
  refused 9.9.1 'the checksum of .* nothing was installed'
  refused 1.0.0 'there is no release 1.0.0 at .* build it from source'
  refused '' 'there is no release at .*/none, or it cannot be reached; build it from source' SPILLGATE_RELEASES="$url/none"
  refused '' 'there is no program for FreeBSD on amd64' PATH="$scratch/tools:$PATH" SYSTEM=FreeBSD MACHINE=amd64
  refused '' 'there is no program for Linux on riscv64' PATH="$scratch/tools:$PATH" SYSTEM=Linux MACHINE=riscv64
  refused '' 'there is no program for MINGW64_NT-10.0 on x86_64' PATH="$scratch/tools:$PATH" SYSTEM=MINGW64_NT-10.0 MACHINE=x86_64
  # A download of the script that breaks off.
  head -c "$(($(wc -c < "$root/deploy/install.sh") - 10))" "$root/deploy/install.sh" |
    env SPILLGATE_RELEASES="$url/releases" PREFIX="$scratch/half" sh > /dev/null 2>&1 || true
  [ ! -e "$scratch/half" ] || fail "half of the script installs something"
}

# refused VERSION TEXT [NAME=VALUE...]: the program that was there stays.
refused() {
  local text=$2
  ! (installs sh "$1" "${@:3}") 2> /dev/null || fail "it should have refused: $text"
  expect "$text"
  installed 9.9.0
  nothing_else
}

expect() {
  grep -q "$1" "$scratch/output" || fail "expected '$1', got: $(cat "$scratch/output")"
}

installed() {
  "$scratch/prefix/bin/spillgate" --version | grep -q "^spillgate $1 " || fail "expected $1 to be installed: $(cat "$scratch/output")"
}

nothing_else() {
  [ "$(find "$scratch/prefix" -type f)" = "$scratch/prefix/bin/spillgate" ] || fail "it leaves files: $(find "$scratch/prefix")"
}

end() {
  [ -z "$server" ] || kill "$server" 2> /dev/null || true
  wait 2> /dev/null || true
  rm -rf "$scratch"
}

fail() {
  echo "install: $*" >&2
  exit 1
}

main "$@"
