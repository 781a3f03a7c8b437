# What kind of host this is, and where a program can be kept (cache) and boxes can be (base). $1 is the base directory that
# is asked for, or empty. Needs a POSIX shell alone.
umask 077
user=$(id -u)

# Whether a program that is put into a directory runs there.
works() {
  try=$1/.hermes-exec-try-$$
  printf '#!/bin/sh\nexit 7\n' >"$try" && chmod 700 "$try" && "$try"
  code=$?
  rm -f "$try"
  [ $code = 7 ]
}

# The same for a directory that nobody else can write to, which is made.
private() {
  mkdir -p "$1" && [ ! -L "$1" ] && [ -O "$1" ] && chmod 700 "$1" && works "$1"
}

# first WORD TEST DIRECTORY...: tells the first absolute one that passes.
first() {
  word=$1 test=$2
  shift 2
  for directory; do
    case $directory in
      /*) "$test" "$directory" 2>/dev/null && echo "$word $directory" && return ;;
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
