# What tells one test cluster of a machine from another: to be sourced, with `$dir`.
#
# A cluster takes a network 10.N.0.0/16 that the machine does not use:
#   10.N.1.0/24 …      the pods of node-1 …
#   10.N.64.0/18       the machine, if measured: pods of simulated nodes
#   10.N.128.0/20      services
#   10.N.255.1         the machine: API server, DNS
#   10.N.255.11 …      node-1 …

# What a bare machine lacks.
machine_prepare() {
  local packages=()
  command -v ip >/dev/null || packages+=(iproute2)
  command -v iptables >/dev/null || packages+=(iptables)
  command -v python3 >/dev/null || packages+=(python3)
  if [ ! -d /sys/fs/cgroup/memory ] && [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then packages+=(cgroupfs-mount); fi
  [ "${#packages[@]}" -gt 0 ] || return 0
  apt-get update -qq >&2
  apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2
  [ -d /sys/fs/cgroup/memory ] || [ -e /sys/fs/cgroup/cgroup.controllers ] || cgroupfs-mount >&2
}

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Whether an address of a network 10.N is known to the machine. A cluster that is about to start has its bridge.
network_is_used() { ip -4 route show | grep -q "10\.$1\." || ip link show "rh-test-$1" >/dev/null 2>&1; }

# Chooses the settings of a cluster at its first start, under a lock: clusters may start at once.
settings_choose() {
  local number
  exec 8>/run/lock/roundhouse-kubernetes
  flock 8
  for number in $(seq 200 249); do
    network_is_used "$number" || break
  done
  {
    echo "number=$number"
    echo "port=$(free_port)"
    echo "etcd_port=$(free_port)"
    echo "etcd_peer_port=$(free_port)"
  } >"$dir/settings.new"
  mv "$dir/settings.new" "$dir/settings"
  ip link add "rh-test-$number" type bridge
  exec 8>&-
}

settings_read() {
  # shellcheck source=/dev/null
  . "$dir/settings"
  network="10.$number"
  bridge="rh-test-$number"
}

# Writes a file from one of testing/kubernetes whose places in @ are to be filled in, for the cluster or for a node.
#   fill TEMPLATE FILE [NODE]
fill() {
  local node="${3:-0}"
  sed -e "s|@CACHE@|$cache|g; s|@KEYS@|$dir/credentials|g; s|@NETWORK@|$network|g" \
    -e "s|@FOLDER@|$dir/node-$node|g; s|@NODE@|node-$node|g; s|@PODS@|$network.$node.0/24|g" \
    -e "s|@CGROUP@|/rh-test-$number/node-$node|g" \
    "$sources/$1" >"$2"
}
