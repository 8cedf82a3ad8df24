# What the tests of this folder share: to be sourced, with `$name`, which their lines begin with. A test may define
# `show_logs`, which shows what a person needs to see after a failure.

say() { echo "$name: $*" >&2; }

show_logs() { :; }

# Says what is missing here. That fails where nothing may be (ROUNDHOUSE_REQUIRE_ALL).
missing() {
  say "skipped: $1"
  [ -z "${ROUNDHOUSE_REQUIRE_ALL:-}" ] || exit 1
}

# The same, where nothing can be tried without it.
skip() {
  missing "$1"
  exit 0
}

fail() {
  say "not so: $1"
  show_logs
  exit 1
}

# Waits until a command succeeds, a minute at most.
wait_for() {
  local what="$1"
  shift
  for _ in $(seq 300); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.2
  done
  fail "$what, after a minute"
}

# A command that must succeed, and what that shows.
expect() {
  local what="$1"
  shift
  "$@" || fail "$what"
  say "$what"
}

# A port of the loopback interface that nobody listens on.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
