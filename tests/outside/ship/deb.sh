#!/usr/bin/env bash
# Installs, runs, upgrades and purges the Debian package in an overlay of this machine's root, which ends with this process.
# Usage, as root: unshare --mount deb.sh PACKAGE
set -euo pipefail

main() {
  local package=${1:?"usage: unshare --mount deb.sh PACKAGE"}
  scratch=$(mktemp -d)
  trap end EXIT
  # The upper folder of an overlay may not lie on an overlay, as /tmp of a container may.
  mount -t tmpfs none "$scratch"
  root=$scratch/root
  mkdir "$root" "$scratch/upper" "$scratch/work"
  mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" "$root"
  mount --bind /dev "$root/dev"
  mount -t proc proc "$root/proc"
  printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
  chmod 755 "$root/usr/sbin/policy-rc.d"
  cp "$package" "$root/spillgate.deb"

  installs
  serves
  keeps_the_file_of_the_operator
  leaves_nothing_behind
  echo "$(basename "$package") installs, serves, upgrades, keeps changed settings, and purges"
}

installs() {
  inside dpkg --install /spillgate.deb > "$scratch/log" 2>&1 || fail "it does not install: $(cat "$scratch/log")"
  [ "$(stat -c %a:%u "$root/usr/bin/spillgate")" = 755:0 ] || fail "/usr/bin/spillgate is not root's"
  inside spillgate validate $settings > /dev/null || fail "its own settings are refused"
  inside dpkg-query --show --showformat '${Conffiles}' spillgate | grep -q " $settings " || fail "$settings is no conffile"
  local unit
  unit=$(inside dpkg-query --listfiles spillgate | grep '/spillgate\.service$') || fail "there is no unit"
  cmp -s deploy/systemd/spillgate.service "$root$unit" || fail "$unit is not deploy/systemd/spillgate.service"
  [ -L "$root$enabled" ] || fail "the unit is not enabled"
}

# As the unit starts it, by an unprivileged user.
serves() {
  local http=$((30000 + RANDOM % 1000)) admin=$((31000 + RANDOM % 1000)) command call waited=0
  command=$(sed -n 's/^ExecStart=//p' deploy/systemd/spillgate.service)
  SPILLGATE_SERVER__HTTP=127.0.0.1:$http SPILLGATE_SERVER__GRPC__ADDRESS=off SPILLGATE_SERVER__RESP__ADDRESS=off SPILLGATE_SERVER__ADMIN=127.0.0.1:$admin \
    chroot --userspec=65534:65534 --groups= "$root" $command 2> "$scratch/log" &
  server=$!
  until asked health unlimited > /dev/null 2>&1; do
    [ $((waited += 1)) -lt 100 ] || fail "it does not answer: $(cat "$scratch/log")"
    sleep 0.1
  done
  for call in 1 2 3 4 5; do
    asked u1 5/minute > /dev/null || fail "call $call is denied"
  done
  ! asked u1 5/minute > /dev/null || fail "the sixth call is allowed"
  curl -sf --noproxy '*' "http://127.0.0.1:$admin/" | grep -q Spillgate || fail "there is no dashboard"
  kill -TERM $server
  wait $server || fail "SIGTERM ended it with $?"
  server=
}

asked() {
  inside spillgate check --url "http://127.0.0.1:$http" --key "$1" --quota "$2"
}

keeps_the_file_of_the_operator() {
  echo '# Changed by an operator.' >> "$root$settings"
  inside dpkg --install /spillgate.deb > "$scratch/log" 2>&1 || fail "it does not upgrade: $(cat "$scratch/log")"
  grep -q 'Changed by an operator' "$root$settings" || fail "an upgrade overwrites $settings"
}

leaves_nothing_behind() {
  inside dpkg --remove spillgate > "$scratch/log" 2>&1 || fail "it cannot be removed: $(cat "$scratch/log")"
  [ ! -e "$root/usr/bin/spillgate" ] || fail "the program stays after its removal"
  [ -e "$root$settings" ] || fail "its removal takes the settings along"
  inside dpkg --purge spillgate > "$scratch/log" 2>&1 || fail "it cannot be purged: $(cat "$scratch/log")"
  [ ! -e "$root/etc/spillgate" ] && [ ! -L "$root$enabled" ] || fail "a purge leaves settings or unit behind"
}

settings=/etc/spillgate/spillgate.toml
enabled=/etc/systemd/system/multi-user.target.wants/spillgate.service

inside() {
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

end() {
  [ -z "${server:-}" ] || kill -KILL "$server" 2> /dev/null || true
  wait 2> /dev/null || true
  umount -R "$scratch" 2> /dev/null || true
  rmdir "$scratch" 2> /dev/null || true
}

fail() {
  echo "deb: $*" >&2
  exit 1
}

main "$@"
