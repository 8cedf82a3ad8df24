# The chart on a cluster: to be sourced, with `$here`, `$chart`, `$work`, `helm`, and `$KUBECONFIG`.

namespace=helm-test
# Namespaces of products: one whose Pods may reach engines, and one whose Pods may not.
friends=helm-test-friends
strangers=helm-test-strangers
cluster="${ROUNDHOUSE_TEST_KUBERNETES_CLUSTER:-}"
cluster_program="${ROUNDHOUSE_TEST_KUBERNETES_PROGRAM:-$here/.ci/kubernetes-cluster}"
binary="${ROUNDHOUSE_TEST_BINARY:-${CARGO_TARGET_DIR:-$here/target}/debug/roundhouse}"
registry=helm-test
admin_key="helm-test-$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')"
values=(--set existingSecret=keys --set "image.registry=$registry" --set image.pullPolicy=Never
  # The cluster has no IPv6, and its policies take none.
  --set-json networkPolicy.engines.blockedCidrsV6=[] --set engines.env.LLM_PROVIDER=scripted --set log.format=text)

# shellcheck source=/dev/null
. "$here/.ci/services-postgres"

kubectl() { "${ROUNDHOUSE_TEST_KUBECTL:-kubectl}" --namespace "$namespace" "$@"; }

# Waits until a command succeeds.
wait_until() {
  local seconds="$1" what="$2" end=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || fail "$what: not within $seconds s"
    sleep 0.3
  done
}

cluster_prepare() {
  [ -n "$cluster" ] || skip "the nodes of another cluster cannot be given images"
  [ -x "$binary" ] || skip "$binary is not built"
  version="$("$binary" --version | cut -d ' ' -f 2)"
  local images each
  images="$("$here/deploy/build-images" --base "${ROUNDHOUSE_TEST_BASE_IMAGE:-roundhouse-base:bookworm}" \
    --registry "$registry" "$binary")"
  # shellcheck disable=SC2086
  docker save $images -o "$work/images.tar"
  "$cluster_program" load "$cluster" "$work/images.tar" >/dev/null 2>&1 || fail "the nodes do not take the images"
  rm "$work/images.tar"
  prepared=yes
  database_start
  for each in "$namespace" "$friends" "$strangers"; do
    kubectl create namespace "$each" >/dev/null
    kubectl label namespace "$each" pod-security.kubernetes.io/enforce=restricted >/dev/null
  done
  kubectl label namespace "$friends" roundhouse/products=true >/dev/null
  kubectl create secret generic keys --from-literal=admin-key="$admin_key" --from-literal=database-url="$database_url" \
    --from-literal=master-key="$(head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=')" >/dev/null
}

# PostgreSQL on the address of this machine that Pods reach.
database_start() {
  local data="$work/postgres" address port
  address="$(sed -n 's/^number=\(.*\)$/10.\1.255.1/p' "$cluster/settings")"
  port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
  mkdir "$data"
  chmod 755 "$work"
  [ "$(id -u)" != 0 ] || chown postgres:postgres "$data"
  (
    cd /
    postgres_run initdb -D "$data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync >/dev/null
    echo "host all all ${address%.255.1}.0.0/16 trust" >>"$data/pg_hba.conf"
    postgres_run pg_ctl start -w -D "$data" -l "$data/log" -o "-p $port -c listen_addresses=$address \
      -c unix_socket_directories=$data -c fsync=off -c max_connections=200" >/dev/null </dev/null 7>&-
  )
  database_url="postgres://postgres@$address:$port/postgres?sslmode=disable"
}

# Removes all that was made, whatever happened.
cluster_clean() {
  local each
  [ -n "${prepared:-}" ] || return 0
  helm uninstall roundhouse --namespace "$namespace" >/dev/null 2>&1 || true
  for each in "$namespace" "$friends" "$strangers"; do
    kubectl delete namespace "$each" --ignore-not-found --timeout=120s >/dev/null 2>&1 || say "namespace $each remains"
  done
  docker rmi "$registry/roundhouse:$version" "$registry/svc-engine:$version" >/dev/null 2>&1 || true
  (cd / && postgres_run pg_ctl stop -m immediate -D "$work/postgres") >/dev/null 2>&1 || true
}

# The names of the orchestrators' Pods that run, with their addresses: the ready ones, or those that are not.
orchestrators() {
  local columns='{.metadata.name} {.status.podIP} {.status.conditions[?(@.type=="Ready")].status} {.metadata.deletionTimestamp}'
  kubectl get pods -l app.kubernetes.io/name=roundhouse-orchestrator -o jsonpath="{range .items[*]}$columns{'\n'}{end}" |
    awk -v ready="$1" 'NF == 3 && $3 == ready { print $1, $2 }'
}
one_is_ready() { [ "$(orchestrators True | wc -l)" = 1 ]; }
all_are_up() { one_is_ready && [ "$(orchestrators False | wc -l)" = 1 ]; }
active_pod() { orchestrators True | cut -d ' ' -f 1; }
active_address() { orchestrators True | cut -d ' ' -f 2; }

# A call of the active orchestrator: METHOD PATH KEY-HEADER [BODY].
call() {
  curl -sS --max-time 90 --fail-with-body -X "$1" "http://$(active_address):8000$2" -H "$3" \
    -H 'Content-Type: application/json' ${4:+--data "$4"}
}
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# Runs a program of Python's in a Pod of a namespace, and prints what it prints.
in_a_pod() {
  local where="$1" name="try-$RANDOM" program="$2"
  kubectl --namespace "$where" run "$name" --restart=Never --rm --attach --quiet --image="$registry/roundhouse:$version" \
    --image-pull-policy=Never --overrides='{"spec": {"automountServiceAccountToken": false, "securityContext":
      {"runAsNonRoot": true, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}, "containers": [{"name": "'"$name"'",
      "image": "'"$registry/roundhouse:$version"'", "command": ["python3", "-c", "'"$program"'"], "securityContext":
      {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}' 2>&1
}

check_server_side() {
  helm template roundhouse "$chart" --namespace "$namespace" "${values[@]}" --set podDisruptionBudget.enabled=true \
    --set ingress.enabled=true,ingress.host=roundhouse.example.com,ingress.tlsSecret=tls --no-hooks |
    kubectl apply --dry-run=server -f - >"$work/dry-run" || fail "the API server refuses the chart's objects"
  sed "s/^\( *namespace:\) roundhouse$/\1 $namespace/" "$here/deploy/kubernetes/orchestrator.yaml" |
    kubectl apply --dry-run=server -f - >>"$work/dry-run" || fail "the API server refuses the plain manifests"
  say "server-side dry run: $(wc -l <"$work/dry-run") objects"
}

chart_test() {
  local began=$SECONDS
  helm test roundhouse --namespace "$namespace" --timeout 120s >"$work/test" 2>&1 ||
    fail "helm test: $(cat "$work/test"; kubectl logs roundhouse-test)"
  say "helm test: succeeded in $((SECONDS - began)) s"
}

check_install() {
  local began=$SECONDS
  helm install roundhouse "$chart" --namespace "$namespace" "${values[@]}" --wait --timeout 180s >"$work/notes" ||
    fail "helm install"
  wait_until 60 "one ready and one standby" all_are_up
  say "installed in $((SECONDS - began)) s: $(active_pod) is ready, $(orchestrators False | cut -d ' ' -f 1) is not"
  chart_test
}

engine_pod() { kubectl get pods -l app.kubernetes.io/name=roundhouse-engine -o jsonpath='{.items[*].metadata.name}'; }
engine_identity() {
  kubectl get pods -l app.kubernetes.io/name=roundhouse-engine \
    -o jsonpath='{.items[*].metadata.uid} {.items[*].status.startTime} {.items[*].status.containerStatuses[0].restartCount}'
}
engine_answers() { call GET /engines/ada/proxy/health "X-Platform-Key: $platform_key" | grep -q '"status"'; }

check_use() {
  local began=$SECONDS answer url
  platform_key="$(call POST /products/register "X-Admin-Key: $admin_key" '{"slug": "helm", "display_name": "Helm"}' |
    field platform_api_key)"
  answer="$(call POST /engines/provision "X-Platform-Key: $platform_key" '{"user_id": "ada"}')" || fail "provision: $answer"
  url="$(field url <<<"$answer")"
  engine_answers || fail "the engine does not answer through the proxy"
  engine="$(engine_identity)"
  say "an engine was provisioned in $((SECONDS - began)) s and answers at $url"
  check_policies "$url"
  chart_test
}

# Who reaches engines, and what they reach.
check_policies() {
  local reach="import urllib.request as r; print(r.urlopen('$1/health', timeout=5).status)" answer api
  answer="$(in_a_pod "$friends" "$reach")" || fail "a product's Pod does not reach the engine: $answer"
  if answer="$(in_a_pod "$strangers" "$reach")"; then fail "a stranger's Pod reaches the engine: $answer"; fi
  api="$(kubectl get service kubernetes --namespace default -o jsonpath='{.spec.clusterIP}')"
  for answer in "$api:443" "$(active_address):8000" 169.254.169.254:80; do
    if kubectl exec "$(engine_pod)" -- python3 -c \
      "import socket; socket.create_connection(('${answer%:*}', ${answer#*:}), 3)" >/dev/null 2>&1; then
      fail "the engine reaches $answer"
    fi
  done
  kubectl exec "$(engine_pod)" -- python3 -c "import socket; socket.getaddrinfo('kubernetes.default.svc', 443)" \
    >/dev/null || fail "the engine has no name resolution"
  say "policies: products reach engines and strangers do not; engines resolve names and reach neither the API server nor" \
    "the orchestrator"
}

# Notes in a Pod how long the Service did not lead to an active orchestrator.
gap_begin() {
  cat >"$work/gap.py" <<'END'
import time
import urllib.request
began = worst = 0
last = time.monotonic()
while True:
    try:
        urllib.request.urlopen('http://roundhouse:8000/health', timeout=1).close()
        worst = max(worst, time.monotonic() - last)
        last = time.monotonic()
        print(f'{worst:.1f}', flush=True)
    except OSError:
        pass
    time.sleep(0.1)
END
  kubectl delete pod gap --ignore-not-found --grace-period=1 >/dev/null 2>&1
  kubectl create configmap gap --from-file="$work/gap.py" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl apply -f - >/dev/null <<END
apiVersion: v1
kind: Pod
metadata: { name: gap }
spec:
  terminationGracePeriodSeconds: 1
  securityContext: { runAsNonRoot: true, runAsUser: 10001, seccompProfile: { type: RuntimeDefault } }
  containers:
    - name: gap
      image: $registry/roundhouse:$version
      imagePullPolicy: Never
      command: [python3, /gap/gap.py]
      securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
      volumeMounts: [{ name: gap, mountPath: /gap }]
  volumes: [{ name: gap, configMap: { name: gap } }]
END
  kubectl wait pod/gap --for=condition=Ready --timeout=60s >/dev/null
}
gap_seconds() { kubectl logs gap --tail=1; }

# That there are two orchestrators, both of the newest revision, one of them ready.
update_is_complete() {
  all_are_up && [ "$(kubectl get deployment roundhouse-orchestrator \
    -o jsonpath='{.status.observedGeneration} {.status.updatedReplicas} {.status.replicas}')" = \
    "$(kubectl get deployment roundhouse-orchestrator -o jsonpath='{.metadata.generation}') 2 2" ]
}

engine_is_untouched() {
  [ "$(engine_identity)" = "$engine" ] || fail "the engine's Pod was $engine and is $(engine_identity)"
  wait_until 10 "the engine answers through the proxy" engine_answers
}

check_upgrade() {
  local began=$SECONDS before
  before="$(active_pod)"
  gap_begin
  helm upgrade roundhouse "$chart" --namespace "$namespace" "${values[@]}" --set podAnnotations.changed=yes \
    --wait --timeout 180s >/dev/null || fail "helm upgrade"
  wait_until 120 "two orchestrators of the new revision" update_is_complete
  [ "$(active_pod)" != "$before" ] || fail "the same Pod is active"
  engine_is_untouched
  say "helm upgrade: done in $((SECONDS - began)) s, no active orchestrator for $(gap_seconds) s; the engine was not touched"
  check_broken_upgrade
}

# An update that cannot start leaves the active orchestrator alone.
check_broken_upgrade() {
  local before
  before="$(active_pod)"
  helm upgrade roundhouse "$chart" --namespace "$namespace" "${values[@]}" --set image.tag=0.0.0-missing >/dev/null
  sleep 15
  [ "$(active_pod)" = "$before" ] || fail "an image that does not exist replaced the active orchestrator"
  engine_is_untouched
  say "an update to an image that does not exist: the earlier orchestrator stays active"
}

check_rollback() {
  local began=$SECONDS
  gap_begin
  helm rollback roundhouse 1 --namespace "$namespace" --wait --timeout 180s >/dev/null || fail "helm rollback"
  wait_until 120 "two orchestrators of the first revision" update_is_complete
  engine_is_untouched
  say "helm rollback: done in $((SECONDS - began)) s, no active orchestrator for $(gap_seconds) s; the engine was not touched"
}

evict() {
  local pod="$1"
  kubectl create --raw "/api/v1/namespaces/$namespace/pods/$pod/eviction" -f - >/dev/null 2>"$work/eviction" <<END
{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "$pod", "namespace": "$namespace"}}
END
}

# What a drain of the active orchestrator's node does, without and with the budget.
check_drain() {
  local before
  before="$(active_pod)"
  gap_begin
  evict "$before" || fail "the active orchestrator cannot be evicted: $(cat "$work/eviction")"
  wait_until 60 "the standby takes over" update_is_complete
  engine_is_untouched
  say "eviction of the active orchestrator: none was active for $(gap_seconds) s"
  helm upgrade roundhouse "$chart" --namespace "$namespace" "${values[@]}" --set podDisruptionBudget.enabled=true >/dev/null
  wait_until 60 "the budget is known" kubectl get pdb roundhouse-orchestrator -o jsonpath='{.status.currentHealthy}'
  sleep 2
  if evict "$(active_pod)"; then fail "the budget lets the active orchestrator be evicted"; fi
  evict "$(orchestrators False | cut -d ' ' -f 1)" || fail "the budget keeps the standby: $(cat "$work/eviction")"
  say "with the budget the standby can be evicted, and the active orchestrator cannot"
}

check_uninstall() {
  helm uninstall roundhouse --namespace "$namespace" --wait --timeout 120s >/dev/null || fail "helm uninstall"
  [ "$(engine_identity)" = "$engine" ] || fail "the engine did not survive helm uninstall"
  [ "$(kubectl get persistentvolumeclaims -o name | wc -l)" = 1 ] || fail "the engine's claim is gone"
  say "helm uninstall: the engine runs and its claim stays"
}
