# Reports the system and architecture of a host, a directory for the runner (cache), whether the runner is already there
# (installed), and a directory for sandboxes (base). $1 and $2 are the configured base and cache directories, or empty.
# Three arguments follow for each runner that can be installed: architecture, SHA-256, bytes. Needs a POSIX shell and
# mktemp.
umask 077
user=$(id -u) arch=$(uname -m) base=$1 cache=${2-} runner= bytes=0 room=0
while [ $# -ge 5 ]; do
  [ "$3" = "$arch" ] && runner=$4 bytes=$5
  shift 3
done

# Succeeds if only root and this user are in a group: many systems make such a group for each user.
is_private() (
  names=' ' first= known=
  while IFS=: read -r name rest uid gid rest || [ "$name" ]; do
    case $uid:$gid in
      0:* | "$user":*) names="$names$name " && if [ "$gid" = "$1" ]; then first=1; fi ;;
      *:"$1") return 1 ;;
    esac
  done </etc/passwd
  while IFS=: read -r name rest gid members || [ "$name" ]; do
    [ "$gid" = "$1" ] || continue
    known=1 IFS=,
    for member in $members; do
      case $names in *" $member "*) ;; *) return 1 ;; esac
    done
  done </etc/group
  [ "$first$known" = 11 ]
)

# Succeeds if only root and this user decide where a path without links leads; otherwise it prints why not. They must
# own each directory on the way. Others may not write to it, unless it is sticky or lies below a directory of this user
# that others cannot enter. The latter does not count for root: root's slots have users of their own, whose working
# directories are below it.
strict() (
  at=$1 why=
  while :; do
    set -- $(ls -ldn "$at/")
    case $3 in
      0 | "$user") ;;
      *) echo "unsafe $at belongs to another user ($3)" && return 1 ;;
    esac
    open=
    case $3:$1 in
      [1-9]*:??????[-S]??[-T]*) why= ;;
      *:????????w[!tT]* | *:?????w???[!tT]+*) open=1 ;; # with an ACL, the group bits are for the users that it names
      *:?????w???[!tT]*) is_private "$4" || open=1 ;;
    esac
    [ "$open" ] && : "${why:=unsafe others may write to $at ($1, not sticky): chmod go-w, or +t}"
    [ "$at" ] || break
    at=${at%/*}
  done
  [ ! "$why" ] || { echo "$why" && return 1; }
)

# Succeeds if a program in a directory can run, and `room` bytes can be written there. Only written bytes prove room:
# a quota may be smaller than the free space, and zeros may take none.
works() {
  try=$(mktemp -d "$1/.hermes-exec-try-XXXXXXXXXX") || return
  printf '#!/bin/sh\nexit 7\n' >"$try/try" && chmod 700 "$try/try" && head -c $room /dev/urandom >"$try/room" &&
    "$try/try"
  code=$?
  rm -rf "$try"
  [ $code = 7 ]
}

# Makes a private directory, and succeeds if it has the runner, or room for the runner where a program can run.
private() {
  mkdir -p "$1" && [ ! -L "$1" ] && [ -O "$1" ] && chmod 700 "$1" || return
  room=$bytes installed=
  [ "$runner" ] && [ "$("$1/runner-$runner" sha256)" = "$runner" ] && installed=1 room=0
  works "$1"
}

# first WORD TEST DIRECTORY...: prints the first absolute directory that passes the test, without links.
first() {
  word=$1 test=$2
  shift 2
  for directory; do
    case $directory in
      /*)
        there=$directory
        until [ -d "$there/" ]; do there=${there%/*}; done
        there=$(cd -P "$there/" && pwd -P) && strict "${there%/}" && "$test" "$directory" >/dev/null 2>&1 &&
          echo "$word $(cd -P "$directory" && pwd -P)" && return
        ;;
    esac
  done
}

echo "system $(uname -s)"
echo "arch $arch"
if [ "$base" ]; then
  first base works "$base"
else
  first base works "${TMPDIR-}" /tmp /var/tmp /dev/shm
fi
if [ "$cache" ]; then
  first cache private "$cache"
else
  first cache private "${XDG_CACHE_HOME:-${HOME-}/.cache}/hermes-exec" "/var/tmp/hermes-exec-$user" \
    "/tmp/hermes-exec-$user" "/dev/shm/hermes-exec-$user"
fi
if [ "${installed-}" ]; then echo "installed $runner"; fi
