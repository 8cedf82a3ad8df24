# Processes of a test cluster: to be sourced, with `$dir` as the cluster's folder.
#
# Each set of processes (the control plane, each node) is a PID namespace whose process 1 is `pause`. So its members
# have a parent that reaps them whatever process 1 of the machine does, and the end of `pause` is the end of them all.
# All ids in files are those that the machine sees.

say() { echo "kubernetes-cluster: $*" >&2; }

# Waits until a command succeeds, until a deadline in seconds.
wait_for() {
  local deadline=$((SECONDS + $1)) what="$2"
  shift 2
  while ! "$@" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      say "$what did not come in time"
      return 1
    fi
    sleep 0.1
  done
}

# Whether the process of a file runs: every process of a cluster names the cluster's folder among its arguments, which
# neither a zombie does nor a stranger who got the same id later.
runs() {
  local id
  id="$(cat "$1" 2>/dev/null)" || return 1
  grep -qzF -- "$dir" "/proc/$id/cmdline" 2>/dev/null
}

is_over() { ! runs "$1"; }

# Ends the process of a file, and waits for its end; by force when it takes longer than some seconds.
end() {
  local file="$1" seconds="${2:-10}"
  if runs "$file"; then
    kill "$(cat "$file")" 2>/dev/null || true
    if ! wait_for "$seconds" "the end of $(basename "$file" .pid)" is_over "$file"; then
      kill -9 "$(cat "$file")" 2>/dev/null || true
      wait_for 10 "the end by force of $(basename "$file" .pid)" is_over "$file"
    fi
  fi
  rm -f "$file"
}

# Makes a PID namespace, with the further namespaces that are named by options of unshare(1).
#   namespaces FOLDER [OPTION…]     FOLDER/init.pid is its process 1
namespaces() {
  local folder="$1"
  shift
  runs "$folder/init.pid" && return
  rm -f "$folder/init.pid"
  # A procfs that was mounted outside says the ids of outside, also to those inside.
  # shellcheck disable=SC2016
  setsid unshare --pid --fork "$@" bash -c 'read -r id _ </proc/self/stat; echo "$id" >"$1/init.pid"; exec "$2" "$1"' \
    "$dir" "$folder" "$cache/bin/pause" >"$folder/init.log" 2>&1 </dev/null &
  disown
  wait_for 10 "process 1 of $folder" runs "$folder/init.pid"
}

# Starts a program in a set of namespaces, unless it runs; its id goes to NAME.pid, what it says to NAME.log.
#   launch FOLDER NAME COMMAND…
launch() {
  local folder="$1" name="$2" init
  shift 2
  runs "$folder/$name.pid" && return
  rm -f "$folder/$name.pid"
  init="$(cat "$folder/init.pid")"
  # Its parent, a shell within the PID namespace, ends at once, which makes it a child of process 1 there. Only then does
  # it enter the other namespaces, where another procfs may be mounted.
  # shellcheck disable=SC2016
  nsenter --target "$init" --pid bash -c '
    file="$1" init="$2"; shift 2
    (
      trap "" HUP
      read -r id _ </proc/self/stat
      echo "$id" >"$file.pid"
      exec nsenter --target "$init" --mount --net --uts --ipc setsid "$@" >>"$file.log" 2>&1 </dev/null
    ) &' \
    "$dir" "$folder/$name" "$init" "$@"
}
