# What is checked of the chart without a cluster: to be sourced, with `$here`, `$chart`, `$work` and `helm`.

# The values without which the chart cannot be installed.
minimal=(--set existingSecret=roundhouse)
# Everything that can be turned on.
everything=(
  "${minimal[@]}"
  --set podDisruptionBudget.enabled=true
  --set ingress.enabled=true,ingress.host=roundhouse.example.com,ingress.tlsSecret=tls,ingress.className=nginx
  --set httpRoute.enabled=true,httpRoute.parentRefs[0].name=gateway,httpRoute.hostnames[0]=roundhouse.example.com
  --set engines.env.LLM_PROVIDER=anthropic
  --set engines.secretEnv.existingSecret=models,engines.secretEnv.keys[0]=ANTHROPIC_API_KEY
  --set engines.storage.class=fast,engines.catalog=configmap:catalog,engines.runtimeClass=gvisor
  --set engines.nodeSelector.pool=engines,engines.forceAfterSeconds=300,engines.image.pullSecret=registry
  --set image.registry=registry.example.com,image.pullSecrets[0]=registry
  --set networkPolicy.engines.dns.cidrs[0]=169.254.20.10/32
  --set networkPolicy.orchestrator.from[0].podSelector.matchLabels.app=backend
)

check_lint() {
  local monitor
  helm lint --strict --quiet "$chart" "${minimal[@]}" >&2 || fail "lint finds fault with the minimal values"
  helm lint --strict --quiet "$chart" "${everything[@]}" >&2 || fail "lint finds fault with all that can be set"
  # Apart from the rest, which is applied to a cluster that does not have this type.
  monitor="$(helm template roundhouse "$chart" "${minimal[@]}" --set serviceMonitor.enabled=true \
    --show-only templates/service-monitor.yaml)" || fail "there is no ServiceMonitor"
  grep -q "key: admin-key" <<<"$monitor" || fail "the ServiceMonitor has no credentials: $monitor"
  say "lint: nothing to say"
}

# Whether the chart refuses these values, with a message that has this text.
refused() {
  local text="$1" output
  shift
  if output="$(helm template roundhouse "$chart" "$@" 2>&1)"; then fail "it takes $*"; fi
  grep -q -- "$text" <<<"$output" || fail "it refuses $* without saying \"$text\": $output"
}

check_schema() {
  refused "existingSecret" --set replicas=2
  refused "replica" "${minimal[@]}" --set replica=3
  refused "storageClass" "${minimal[@]}" --set engines.storage.storageClass=fast
  refused "replicas" "${minimal[@]}" --set replicas=0
  refused "accessMode" "${minimal[@]}" --set engines.storage.accessMode=ReadWriteMany
  refused "tag" "${minimal[@]}" --set engines.image.tag=latest
  refused "secretEnv.existingSecret" "${minimal[@]}" --set engines.secretEnv.keys[0]=OPENAI_API_KEY
  refused "tlsSecret" "${minimal[@]}" --set ingress.enabled=true,ingress.host=roundhouse.example.com
  say "schema: it refuses what it should"
}

# The manifests for kubectl, made from the chart.
plain_manifests() {
  echo "# The orchestrators: made from the chart by deploy/helm/plain-manifests, for those who do not use Helm. Beside it,"
  echo "# rbac.yaml, service.yaml, network-policy.yaml and a Secret \"roundhouse\" are needed: docs/helm.md."
  helm template roundhouse "$chart" --namespace roundhouse "${minimal[@]}" --set engines.env.LLM_PROVIDER=anthropic \
    --set engines.secretEnv.existingSecret=roundhouse-models,engines.secretEnv.keys[0]=ANTHROPIC_API_KEY \
    --show-only templates/handover.yaml --show-only templates/services.yaml --show-only templates/deployment.yaml |
    grep -v -e '^ *helm.sh/chart: ' -e '^# Source: ' | sed 's/managed-by: Helm/managed-by: kubectl/'
}

check_plain_manifests() {
  plain_manifests | diff "$here/deploy/kubernetes/orchestrator.yaml" - >&2 ||
    fail "deploy/kubernetes/orchestrator.yaml is not what the chart says: deploy/helm/plain-manifests makes it"
  say "plain manifests: as the chart"
}
