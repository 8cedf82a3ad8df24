# What a test cluster runs, built and unpacked into a cache: to be sourced, with `$cache` and `$here`.

sources="$here/testing/kubernetes"
# Programs of Debian's that are run from the cache: to install them could start daemons, and end those that run.
packages="etcd-server containerd runc containernetworking-plugins"

# All that the cache is made of: another version of it is another cache.
cache_wanted() {
  (cd "$sources" && find . -name '*_test.go' -o \( -name '*.go' -o -name 'go.*' -o -name build.sh \) -print | sort |
    xargs sha256sum)
  echo "$packages"
}

# Says why there is no cluster, to people and to the tests, and ends.
skip() {
  say "skipped: $1"
  echo "export ROUNDHOUSE_TEST_KUBERNETES=none ROUNDHOUSE_TEST_KUBECONFIG=none"
  exit 0
}

build() {
  local wanted began=$SECONDS
  [ "$cache" != none ] || skip "what it runs was not built"
  command -v go >/dev/null || skip "Go is missing, which builds Kubernetes from its source"
  mkdir -p "$cache"
  exec 7>"$cache/lock"
  flock 7
  wanted="$(cache_wanted)"
  if [ "$wanted" != "$(cat "$cache/wanted" 2>/dev/null)" ]; then
    rm -rf "$cache/wanted"
    unpack
    compile
    printf '%s\n' "$wanted" >"$cache/wanted"
    say "built in $((SECONDS - began)) s"
  fi
  exec 7>&-
}

unpack() {
  local folder="$cache/debian"
  rm -rf "$folder" "$folder.new"
  mkdir -p "$folder.new/archives"
  apt-get update -qq >&2
  # shellcheck disable=SC2086
  (cd "$folder.new/archives" && apt-get download -qq -o APT::Sandbox::User=root $packages) >&2
  for archive in "$folder.new"/archives/*.deb; do dpkg-deb --extract "$archive" "$folder.new"; done
  rm -rf "$folder.new/archives"
  mv "$folder.new" "$folder"
}

compile() {
  local program
  mkdir -p "$cache/bin"
  say "building Kubernetes: ten minutes on two cores, once"
  (
    cd "$sources"
    version="$(go list -m -f '{{.Version}}' k8s.io/kubernetes)"
    # What the programs say that they are; clients decide by it.
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags="${flags:-} -X $package.gitVersion=$version"
    done
    go build -trimpath -ldflags "-s -w $flags" -o "$cache/bin/" ./...
    # These run in images that have no libraries.
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$cache/bin/" ./pause ./probe
    cd dns
    go build -trimpath -ldflags "-s -w" -o "$cache/bin/" .
  ) >&2
  for program in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
    ln -sf cluster "$cache/bin/$program"
  done
  for program in pause probe; do
    "$cache/bin/setup" image --archive "$cache/$program.tar" --name "test-cluster/$program:1" \
      --program "$cache/bin/$program"
  done
}
