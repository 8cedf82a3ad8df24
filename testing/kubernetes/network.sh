# The network of a test cluster on the machine: to be sourced, with `$dir` and the cluster's settings.

# Rules of the machine's packet filter. Docker lets nothing be forwarded that it does not know, not even between two ends
# of a bridge.
#   network_rules add|remove
network_rules() {
  local act="$1"
  network_rule "$act" filter FORWARD -i "$bridge" -j ACCEPT
  network_rule "$act" filter FORWARD -o "$bridge" -j ACCEPT
  network_rule "$act" nat POSTROUTING -s "$network.0.0/16" ! -d "$network.0.0/16" -j MASQUERADE
}

network_rule() {
  local act="$1" table="$2"
  shift 2
  if [ "$act" = add ]; then
    iptables -w -t "$table" -C "$@" 2>/dev/null || iptables -w -t "$table" -I "$@"
  else
    while iptables -w -t "$table" -D "$@" 2>/dev/null; do :; done
  fi
}

network_start() {
  ip link show "$bridge" >/dev/null 2>&1 || ip link add "$bridge" type bridge
  ip address replace "$network.255.1/24" dev "$bridge"
  ip link set "$bridge" up
  echo 1 >/proc/sys/net/ipv4/ip_forward
  network_rules add
  # Addresses for Pods of simulated nodes: all of them are the machine. Those in 127.0.0.0/8 may not be of a Service.
  [ ! -e "$dir/measured" ] || ip route replace local "$network.64.0/18" dev lo
}

network_stop() {
  network_rules remove
  ip route delete local "$network.64.0/18" dev lo 2>/dev/null || true
  ! ip link show "$bridge" >/dev/null 2>&1 || ip link delete "$bridge"
}
