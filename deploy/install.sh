#!/bin/sh
# Installs the program spillgate on Linux or macOS:
#   curl -fsSL https://github.com/spillgate/spillgate/releases/latest/download/install.sh | sh
# VERSION=1.2.3 installs that version instead of the newest. PREFIX=/opt installs /opt/bin/spillgate; without it the
# program goes to /usr/local/bin if you may write there, and else to ~/.local/bin. SPILLGATE_RELEASES names a mirror of
# the releases.
set -eu

repository=https://github.com/spillgate/spillgate
releases=${SPILLGATE_RELEASES:-$repository/releases}
from_source="build it from source: $repository/blob/main/docs/learn/install.md"

main() {
  target=$(target)
  bin=$(prefix)/bin
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch" ${new:+"$new"}' EXIT
  trap 'exit 1' HUP INT TERM

  # The list of the newest release names its version, so the program is the one of this list even if another is released
  # meanwhile.
  version=${VERSION:-}
  version=${version#v}
  list=$releases/${version:+download/v}${version:-latest/download}/SHA256SUMS
  fetch "$list" "$scratch/SHA256SUMS" || fail "there is no release ${version:+$version }at $releases, or it cannot be reached; $from_source"
  archive=$(sed -n "s/^[0-9a-f]*  \(spillgate-[0-9][0-9.]*-$target\.tar\.gz\)\$/\1/p" "$scratch/SHA256SUMS")
  [ -n "$archive" ] || fail "$list has no program for $target; $from_source"
  folder=${archive%.tar.gz}
  version=${folder#spillgate-}
  version=${version%-"$target"}

  fetch "$releases/download/v$version/$archive" "$scratch/$archive" || fail "$archive cannot be downloaded"
  expected=$(sed -n "s/^\([0-9a-f]*\)  $archive\$/\1/p" "$scratch/SHA256SUMS")
  actual=$(sha256 "$scratch/$archive")
  [ "$actual" = "$expected" ] || fail "the checksum of $archive is '$actual', expected '$expected': nothing was installed"

  # A running program cannot be overwritten, so the new one takes its place.
  mkdir -p "$bin"
  new=$bin/.spillgate-$$
  tar -xzf "$scratch/$archive" -C "$scratch" "$folder/spillgate"
  cp "$scratch/$folder/spillgate" "$new"
  chmod 755 "$new"
  "$new" --version > "$scratch/version" || fail "the program for $target does not run here; $from_source"
  mv -f "$new" "$bin/spillgate"
  echo "$(cat "$scratch/version") is installed: $bin/spillgate"
  case :$PATH: in
    *:"$bin":*) ;;
    *) echo "$bin is not on your PATH; add it: export PATH=\"$bin:\$PATH\"" ;;
  esac
}

target() {
  system=$(uname -s)
  machine=$(uname -m)
  # A shell under Rosetta says x86_64 on an ARM processor.
  [ "$system" != Darwin ] || [ "$(sysctl -n sysctl.proc_translated 2> /dev/null)" != 1 ] || machine=arm64
  case $machine in
    x86_64 | amd64) processor=x86_64 ;;
    aarch64 | arm64) processor=aarch64 ;;
    *) processor='' ;;
  esac
  case $system${processor:+.} in
    Linux.) echo "$processor-unknown-linux-musl" ;;
    Darwin.) echo "$processor-apple-darwin" ;;
    *) fail "there is no program for $system on $machine, only for Linux and macOS on x86-64 and ARM64; $from_source" ;;
  esac
}

prefix() {
  if [ -n "${PREFIX:-}" ]; then
    echo "$PREFIX"
  elif [ -w /usr/local/bin ]; then
    echo /usr/local
  else
    echo "${HOME:?"set PREFIX to the folder for the program"}/.local"
  fi
}

# Nothing but HTTPS, unless SPILLGATE_RELEASES says otherwise.
fetch() {
  if command -v curl > /dev/null; then
    case $1 in https:*) only='=https' ;; *) only='=http,https' ;; esac
    curl --proto "$only" -fsSL --retry 3 -o "$2" "$1"
  elif command -v wget > /dev/null; then
    wget -q -O "$2" "$1"
  else
    fail "this needs curl or wget"
  fi
}

sha256() {
  if command -v sha256sum > /dev/null; then
    sha256sum "$1"
  elif command -v shasum > /dev/null; then
    shasum -a 256 "$1"
  else
    fail "this needs sha256sum or shasum to check the download"
  fi | cut -d ' ' -f 1
}

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

# Last, so that a download that breaks off runs nothing.
main
