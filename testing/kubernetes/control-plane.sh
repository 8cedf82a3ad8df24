# The control plane of a test cluster: to be sourced, with `$dir`, `$cache` and the cluster's settings.

control_plane_components="etcd apiserver controller-manager scheduler provisioner dns"

etcd() {
  launch "$dir" etcd "$cache/debian/usr/bin/etcd" --name test --data-dir "$dir/etcd" \
    --listen-client-urls "http://127.0.0.1:$etcd_port" --advertise-client-urls "http://127.0.0.1:$etcd_port" \
    --listen-peer-urls "http://127.0.0.1:$etcd_peer_port" \
    --initial-advertise-peer-urls "http://127.0.0.1:$etcd_peer_port" \
    --initial-cluster "test=http://127.0.0.1:$etcd_peer_port" \
    --auto-compaction-retention 1h --logger zap
}

# What a cluster for measurements adds: the requests that service accounts of the namespace `roundhouse` send are
# written down, and controllers send theirs as fast as they can instead of 20 to 50 per second. Watches from version 0,
# which kwok opens, need no etcd that is newer than Debian's. Nodes are not lost while the machine is busy.
apiserver_measured=(--audit-policy-file "$sources/audit-policy.yaml" --audit-log-maxsize 4096)
apiserver_measured+=(--feature-gates SizeBasedListCostEstimate=false,WatchList=false)
controllers_measured=(--kube-api-qps 1000 --kube-api-burst 1000)
controller_manager_measured=("${controllers_measured[@]}" --node-monitor-grace-period 10m)

apiserver() {
  local keys="$dir/credentials" measured=()
  [ ! -e "$dir/measured" ] || measured=("${apiserver_measured[@]}" --audit-log-path "$dir/audit.log")
  # Pods leave a node that is away after half a minute, and not after Kubernetes' five: tests wait for it. The sizes of
  # objects are estimated from consistent reads of the cache, for which Debian's etcd is too old: it would wait in vain.
  launch "$dir" apiserver "$cache/bin/kube-apiserver" \
    --etcd-servers "http://127.0.0.1:$etcd_port" \
    --bind-address 0.0.0.0 --secure-port "$port" --advertise-address "$network.255.1" \
    --service-cluster-ip-range "$network.128.0/20" \
    --tls-cert-file "$keys/apiserver.crt" --tls-private-key-file "$keys/apiserver.key" \
    --client-ca-file "$keys/ca.crt" \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
    --service-account-issuer https://kubernetes.default.svc.cluster.local \
    --service-account-key-file "$keys/service-accounts.pub" \
    --service-account-signing-key-file "$keys/service-accounts.key" \
    --kubelet-client-certificate "$keys/apiserver-kubelet-client.crt" \
    --kubelet-client-key "$keys/apiserver-kubelet-client.key" \
    --kubelet-certificate-authority "$keys/ca.crt" --kubelet-preferred-address-types InternalIP \
    --requestheader-client-ca-file "$keys/front-proxy-ca.crt" --requestheader-allowed-names front-proxy-client \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --requestheader-extra-headers-prefix X-Remote-Extra- \
    --proxy-client-cert-file "$keys/front-proxy-client.crt" --proxy-client-key-file "$keys/front-proxy-client.key" \
    --default-not-ready-toleration-seconds 30 --default-unreachable-toleration-seconds 30 \
    --feature-gates SizeBasedListCostEstimate=false \
    --max-requests-inflight 400 --max-mutating-requests-inflight 200 --profiling=false "${measured[@]}"
}

controller-manager() {
  local keys="$dir/credentials" measured=()
  [ ! -e "$dir/measured" ] || measured=("${controller_manager_measured[@]}")
  launch "$dir" controller-manager "$cache/bin/kube-controller-manager" \
    --kubeconfig "$keys/controller-manager.kubeconfig" --leader-elect=false --secure-port 0 --profiling=false \
    --use-service-account-credentials --service-account-private-key-file "$keys/service-accounts.key" \
    --root-ca-file "$keys/ca.crt" \
    --cluster-signing-cert-file "$keys/ca.crt" --cluster-signing-key-file "$keys/ca.key" \
    --node-monitor-period 2s --node-monitor-grace-period 20s "${measured[@]}"
}

scheduler() {
  local measured=()
  [ ! -e "$dir/measured" ] || measured=("${controllers_measured[@]}")
  launch "$dir" scheduler "$cache/bin/kube-scheduler" --kubeconfig "$dir/credentials/scheduler.kubeconfig" \
    --leader-elect=false --secure-port 0 --profiling=false "${measured[@]}"
}

provisioner() {
  launch "$dir" provisioner "$cache/bin/provisioner" --kubeconfig "$dir/credentials/provisioner.kubeconfig" \
    --folder "$dir"
}

dns() {
  fill Corefile "$dir/Corefile"
  launch "$dir" dns "$cache/bin/dns" -conf "$dir/Corefile"
}

kubectl() { "$cache/bin/kubectl" --kubeconfig "$dir/credentials/admin.kubeconfig" "$@"; }

apiserver_is_ready() { kubectl get --request-timeout 2s --raw /readyz; }

# Controllers have come when the namespaces that exist have what pods need of them.
controllers_are_ready() { kubectl get --request-timeout 2s --namespace default serviceaccount default; }

control_plane_start() {
  local component
  namespaces "$dir"
  for component in etcd apiserver; do "$component"; done
  wait_for 120 "the API server (see $dir/apiserver.log)" apiserver_is_ready
  kubectl apply --filename "$sources/manifests" >&2
  for component in $control_plane_components; do "$component"; done
  wait_for 60 "the controllers (see $dir/controller-manager.log)" controllers_are_ready
}
