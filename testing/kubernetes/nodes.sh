# The nodes of a test cluster: to be sourced, with `$dir`, `$cache` and the cluster's settings.
#
# A node is a set of namespaces (PIDs, network, mounts, host name) with a containerd, a kubelet, a kube-proxy and a program
# for network policies of its own, and a folder, which is its disk. Its end takes all its processes, containers, mounts and links away; its folder stays, as a
# disk does when a machine loses its power.

nodes_at_most=9

node_address() { echo "$network.255.$((10 + $1))"; }
node_link() { echo "rh-test$number-$1"; }
node_cgroup() { echo "rh-test-$number/node-$1"; }

# Runs a command within a node.
#   within NUMBER COMMAND…
within() {
  local folder="$dir/node-$1"
  shift
  nsenter --target "$(cat "$folder/init.pid")" --pid --mount --net --uts --ipc "$@"
}

# The hierarchies of cgroups: that of version 2, or those of version 1.
cgroup_hierarchies() {
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    echo /sys/fs/cgroup
  else
    find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d
  fi
}

# A kubelet wants the group that its pods' groups are made in to be there, with what it is to control.
node_cgroups_make() {
  local hierarchy parent group controller
  for hierarchy in $(cgroup_hierarchies); do
    parent="$hierarchy"
    for group in "$parent/rh-test-$number" "$parent/$(node_cgroup "$1")"; do
      mkdir -p "$group"
      if [ "${hierarchy##*/}" = cpuset ]; then
        # A group of version 1 begins without processors and memory.
        cat "$parent/cpuset.cpus" >"$group/cpuset.cpus"
        cat "$parent/cpuset.mems" >"$group/cpuset.mems"
      elif [ "$hierarchy" = /sys/fs/cgroup ]; then
        for controller in $(cat "$parent/cgroup.controllers"); do
          echo "+$controller" >"$parent/cgroup.subtree_control"
        done
      fi
      parent="$group"
    done
  done
}

# Removes the groups below one, and it: those deepest first.
cgroups_remove() {
  local hierarchy
  for hierarchy in $(cgroup_hierarchies); do
    [ ! -d "$hierarchy/$1" ] || find "$hierarchy/$1" -depth -type d -exec rmdir {} + || return 1
  done
}

# What a node sees of the machine's files: its own /proc, /run and /var/log; nothing that Docker has mounted. A kubelet
# sets some of the kernel's variables, among them what happens on a panic, and shares its kernel here with the whole
# machine: so it finds them set as it wants.
node_mounts() {
  # shellcheck disable=SC2016
  within "$1" bash -euc '
    folder="$1"
    awk "\$3 == \"overlay\" || \$3 == \"nsfs\" { print \$2 }" /proc/self/mounts | while read -r place; do
      umount --lazy "$place"
    done
    mount -t proc proc /proc
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p /run/lock /run/netns "$folder/log" "$folder/kernel"
    mount --bind "$folder/log" /var/log
    while read -r variable value; do
      echo "$value" >"$folder/kernel/${variable//\//.}"
      mount --bind "$folder/kernel/${variable//\//.}" "/proc/sys/$variable"
    done <<"END"
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END
    mount --make-rshared /
    hostname "$2"' bash "$dir/node-$1" "node-$1"
}

node_network() {
  local link other
  link="$(node_link "$1")"
  # That of a node which ended goes soon, but not at once.
  ip link delete "$link" 2>/dev/null || true
  ip link add "$link" type veth peer name eth0 netns "$(cat "$dir/node-$1/init.pid")"
  ip link set "$link" master "$bridge" up
  within "$1" ip link set lo up
  within "$1" ip link set eth0 up
  within "$1" ip address add "$(node_address "$1")/24" dev eth0
  within "$1" ip route add default via "$network.255.1"
  within "$1" bash -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
  for other in $(seq $nodes_at_most); do
    [ "$other" = "$1" ] || within "$1" ip route add "$network.$other.0/24" via "$(node_address "$other")"
  done
  ip route replace "$network.$1.0/24" via "$(node_address "$1")" dev "$bridge"
}

containerd() {
  # Its shim is found beside it.
  launch "$dir/node-$1" containerd env PATH="$cache/debian/usr/bin:$cache/debian/usr/sbin:$PATH" \
    containerd --config "$dir/node-$1/containerd.toml"
}

kubelet() {
  launch "$dir/node-$1" kubelet "$cache/bin/kubelet" --config "$dir/node-$1/kubelet.yaml" \
    --kubeconfig "$dir/credentials/node-$1.kubeconfig" --root-dir "$dir/node-$1/kubelet" \
    --hostname-override "node-$1" --node-ip "$(node_address "$1")" --housekeeping-interval 30s
}

# Services' addresses lead to their pods.
proxy() {
  launch "$dir/node-$1" proxy "$cache/bin/kube-proxy" --config "$dir/node-$1/proxy.yaml"
}

# Network policies become rules of the node's packet filter.
policies() {
  launch "$dir/node-$1" policies "$cache/bin/policies" --kubeconfig "$dir/credentials/policies.kubeconfig" \
    --node "node-$1" --dns "$network.255.1"
}

ctr() {
  local folder="$dir/node-$1"
  shift
  "$cache/debian/usr/bin/ctr" --address "$folder/containerd.sock" --namespace k8s.io "$@"
}

node_is_ready() { kubectl wait --for=condition=Ready --timeout 0 "node/node-$1"; }

# Whether a node's namespaces are as they are to be, and not what a start that was broken off left. The mark is in its
# own /run, which ends with it.
node_is_set_up() { runs "$dir/node-$1/init.pid" && within "$1" test -e /run/set-up; }

node_set_up() {
  local folder="$dir/node-$1"
  mkdir -p "$folder/cni"
  end "$folder/init.pid"
  namespaces "$folder" --net --mount --uts --ipc
  node_mounts "$1"
  node_network "$1"
  node_cgroups_make "$1"
  fill nodes/containerd.toml "$folder/containerd.toml" "$1"
  fill nodes/cni.json "$folder/cni/pods.conflist" "$1"
  fill nodes/kubelet.yaml "$folder/kubelet.yaml" "$1"
  fill nodes/proxy.yaml "$folder/proxy.yaml" "$1"
  grep -v '^#' /etc/resolv.conf >"$folder/resolv.conf" || true
  within "$1" touch /run/set-up
}

# Starts what does not run of a node, from the first time or after it was ended in whatever way.
node_boot() {
  node_is_set_up "$1" || node_set_up "$1"
  containerd "$1"
  wait_for 30 "containerd (see $dir/node-$1/containerd.log)" ctr "$1" version
  ctr "$1" images import "$cache/pause.tar" >&2
  kubelet "$1"
  proxy "$1"
  policies "$1"
}

nodes_start() {
  local node
  for node in $(seq "$1"); do node_boot "$node"; done
  for node in $(seq "$1"); do wait_for 90 "node-$node (see $dir/node-$node/kubelet.log)" node_is_ready "$node"; done
}

# All nodes that the cluster has ever had.
node_numbers() { find "$dir" -maxdepth 1 -name 'node-*' -printf '%f\n' | sed 's/^node-//' | sort; }

nodes_stop() {
  local node
  for node in $(node_numbers); do
    end "$dir/node-$node/init.pid"
    ! ip link show "$(node_link "$node")" >/dev/null 2>&1 || ip link delete "$(node_link "$node")" || true
  done
  wait_for 20 "the end of the nodes' cgroups" cgroups_remove "rh-test-$number"
}
