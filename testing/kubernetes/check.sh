# Shows that a test cluster works: to be sourced, with `$dir`, `$cache` and the cluster's settings.

check_namespace=test-cluster-check

# A pod for each node, as strict as Pod Security asks, each with a volume and a name of its own below a headless service.
check_objects() {
  cat <<END
apiVersion: v1
kind: Namespace
metadata:
  name: $check_namespace
  labels: { pod-security.kubernetes.io/enforce: restricted }
---
apiVersion: v1
kind: Service
metadata: { name: probe, namespace: $check_namespace }
spec:
  clusterIP: None
  selector: { app: probe }
  ports: [{ port: 8080 }]
END
  local node
  for node in $(node_numbers); do
    cat <<END
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: probe-$node, namespace: $check_namespace }
spec:
  accessModes: [ReadWriteOnce]
  resources: { requests: { storage: 1Mi } }
---
apiVersion: v1
kind: Pod
metadata: { name: probe-$node, namespace: $check_namespace, labels: { app: probe } }
spec:
  hostname: probe-$node
  subdomain: probe
  nodeSelector: { kubernetes.io/hostname: node-$node }
  terminationGracePeriodSeconds: 1
  securityContext:
    runAsNonRoot: true
    runAsUser: 1000
    runAsGroup: 1000
    fsGroup: 1000
    seccompProfile: { type: RuntimeDefault }
  containers:
    - name: probe
      image: test-cluster/probe:1
      imagePullPolicy: Never
      args: [--serve, ":8080", --file, /data/file]
      env: [{ name: SSL_CERT_FILE, value: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt }]
      securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
      readinessProbe: { httpGet: { path: /name, port: 8080 }, periodSeconds: 1 }
      volumeMounts: [{ name: data, mountPath: /data }]
  volumes:
    - name: data
      persistentVolumeClaim: { claimName: probe-$node }
END
  done
}

check_kubectl() { kubectl --namespace "$check_namespace" "$@"; }

# Compares what a command says with what it is to say.
expect() {
  local what="$1" wanted="$2" got
  shift 2
  got="$("$@" 2>&1)" || true
  if [ "$got" != "$wanted" ]; then
    say "check: $what: \"$wanted\" was to come, and there came: $got"
    return 1
  fi
  say "check: $what"
}

check_names_follow() { [ "$("$cache/bin/probe" --dns "$network.255.1" "http://$1:8080/name")" = "$2" ]; }

check_volumes_are_gone() {
  [ -z "$(kubectl get persistentvolumes --output name)" ] && ! ls -d "$dir"/node-*/volumes/* 2>/dev/null
}

check_text() { "$cache/bin/probe" "http://$(check_address "$1"):8080/file"; }

check_address() { check_kubectl get pod "probe-$1" --output 'jsonpath={.status.podIP}'; }

check_log() { check_kubectl logs "probe-$1" | grep -o 'serving :8080'; }

check_refusal() {
  { check_kubectl run refused --image test-cluster/probe:1 --privileged 2>&1 || true; } | grep -o 'violates PodSecurity'
}

check_pods_start() {
  local node
  for node in $(node_numbers); do ctr "$node" images import "$cache/probe.tar" >&2; done
  check_objects | kubectl apply --filename - >&2
  for node in $(node_numbers); do
    check_kubectl wait --for=condition=Ready --timeout=60s "pod/probe-$node" >&2
  done
}

check_pods() {
  local node other address name
  for node in $(node_numbers); do
    address="$(check_address "$node")"
    name="probe-$node.probe.$check_namespace.svc.cluster.local"
    expect "the machine reaches probe-$node by its address" "probe-$node" "$cache/bin/probe" "http://$address:8080/name"
    wait_for 15 "the name $name" check_names_follow "$name" "probe-$node"
    expect "it writes to its volume" "" "$cache/bin/probe" --put "text of $node" "http://$address:8080/file"
    for other in $(node_numbers); do
      expect "probe-$other reaches probe-$node by its name" "text of $node" \
        check_kubectl exec "probe-$other" -- /probe "http://$name:8080/file"
    done
    expect "it reaches the API server as a service" ok \
      check_kubectl exec "probe-$node" -- /probe https://kubernetes.default.svc.cluster.local/readyz
    expect "its log is read" "serving :8080" check_log "$node"
  done
  expect "a privileged pod is refused" "violates PodSecurity" check_refusal
}

# The pods of the check reach one another and the DNS server, and nothing else; nothing else reaches them.
check_policy() {
  cat <<END
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: probe, namespace: $check_namespace }
spec:
  podSelector: { matchLabels: { app: probe } }
  policyTypes: [Ingress, Egress]
  ingress: [{ from: [{ podSelector: {} }], ports: [{ port: 8080 }] }]
  egress:
    - to: [{ podSelector: {} }]
    - to: [{ namespaceSelector: { matchLabels: { kubernetes.io/metadata.name: kube-system } } }]
      ports: [{ port: 53, protocol: UDP }, { port: 53 }]
END
}

check_machine_is_kept_out() { ! check_text 1; }
check_machine_is_let_in() { check_text 1; }

check_policies() {
  local node name="probe-1.probe.$check_namespace.svc.cluster.local"
  check_policy | kubectl apply --filename - >&2
  wait_for 30 "the network policy" check_machine_is_kept_out
  for node in $(node_numbers); do
    expect "with a network policy, probe-$node reaches probe-1 by its name" "text of 1" \
      check_kubectl exec "probe-$node" -- /probe "http://$name:8080/file"
    expect "and not the API server" "no answer" check_no_answer "$node" https://kubernetes.default.svc.cluster.local/readyz
  done
  check_policy | kubectl delete --filename - >&2
  wait_for 30 "the end of the network policy" check_machine_is_let_in
}

check_no_answer() {
  { check_kubectl exec "probe-$1" -- /probe "$2" 2>&1 || true; } | grep -q 'Client.Timeout exceeded' && echo "no answer"
}

check_pods_end() {
  kubectl delete namespace "$check_namespace" --timeout 60s >&2
  wait_for 30 "the end of the volumes" check_volumes_are_gone
  say "check: its volumes are reclaimed"
}

check_node_is_away() { kubectl wait --for=condition=Ready=Unknown --timeout 0 node/node-1; }

# How often a pod's container was started again.
check_restarts() {
  check_kubectl get pod "probe-$1" --output 'jsonpath={.status.containerStatuses[0].restartCount}'
}

check_text_is_there() { [ "$(check_text 1)" = "text of 1" ]; }

check_faults() {
  local component
  for component in $control_plane_components node-1/kubelet node-1/containerd node-1/proxy node-1/policies; do
    kill -9 "$(cat "$dir/$component.pid")"
    wait_for 5 "the end of $component" is_over "$dir/$component.pid"
    do_restart "$component"
  done
  wait_for 60 "node-1 after the kills" node_is_ready 1
  expect "containers survive all kills of components" 0 check_restarts 1
  do_cut node-1
  wait_for 60 "the loss of node-1" check_node_is_away
  ! check_text_is_there 2>/dev/null || { say "check: a node that is cut off is reached" && return 1; }
  do_mend node-1
  wait_for 60 "node-1 after it was away" node_is_ready 1
  wait_for 30 "its pod" check_text_is_there
  say "check: a node that is cut off is not ready, and comes back"
  kill -9 "$(cat "$dir/node-1/init.pid")"
  do_restart node-1
  wait_for 120 "the pod of a node that lost its power" check_text_is_there
  say "check: after a power loss the pod is there again, with its volume"
}

do_check() {
  [ -n "$(node_numbers)" ] || { say "check: this cluster has no nodes" && return 1; }
  check_pods_start
  check_pods
  check_policies
  [ "${1:-}" != --faults ] || check_faults
  check_pods_end
}
