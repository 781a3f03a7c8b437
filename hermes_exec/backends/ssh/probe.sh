# What kind of host this is, and where a program can be kept (cache) and sandboxes can be (base). $1 is the base directory that
# is asked for, or empty. Needs a POSIX shell, and mktemp.
umask 077
user=$(id -u)

# Whether only root and this user are in a group, as in the one that many systems make for each user.
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

# Whether nobody but root and this user decides what is at a path without links: they own each directory on the way, and others
# may write to none of them unless it is sticky, or lies below one of this user's that nobody else can enter. (For root that is
# no reason: its slots have users of their own, and their working directories are below it.) Else it says why.
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
      *:????????w[!tT]* | *:?????w???[!tT]+*) open=1 ;; # with an ACL the group is whomever that names
      *:?????w???[!tT]*) is_private "$4" || open=1 ;;
    esac
    [ "$open" ] && : "${why:=unsafe others may write to $at ($1, not sticky): chmod go-w, or +t}"
    [ "$at" ] || break
    at=${at%/*}
  done
  [ ! "$why" ] || { echo "$why" && return 1; }
)

# Whether a program that is put into a directory runs there.
works() {
  try=$(mktemp -d "$1/.hermes-exec-try-XXXXXXXXXX") || return
  printf '#!/bin/sh\nexit 7\n' >"$try/try" && chmod 700 "$try/try" && "$try/try"
  code=$?
  rm -rf "$try"
  [ $code = 7 ]
}

# The same for a directory that nobody else can write to, which is made.
private() {
  mkdir -p "$1" && [ ! -L "$1" ] && [ -O "$1" ] && chmod 700 "$1" && works "$1"
}

# first WORD TEST DIRECTORY...: tells the first absolute one that passes, without links.
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
echo "arch $(uname -m)"
if [ "$1" ]; then
  first base works "$1"
else
  first base works "${TMPDIR-}" /tmp /var/tmp /dev/shm
fi
first cache private "${XDG_CACHE_HOME:-${HOME-}/.cache}/hermes-exec" "/var/tmp/hermes-exec-$user" "/tmp/hermes-exec-$user" \
  "/dev/shm/hermes-exec-$user"
