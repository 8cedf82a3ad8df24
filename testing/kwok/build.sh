#!/usr/bin/env bash
# Builds `kwok`, which simulates the nodes of the measurement `bench kubernetes`, unless it is there, and prints where
# it is. It has a module of its own, because its dependencies are not those of the test cluster's programs.
#
#   testing/kwok/build.sh CACHE
set -euo pipefail
[ $# = 1 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here="$(cd "$(dirname "$0")" && pwd)"
mkdir -p "$1"
cache="$(cd "$1" && pwd)"
wanted="$(cd "$here" && sha256sum go.mod go.sum)"
exec 7>"$cache/kwok.lock"
flock 7
if [ "$wanted" != "$(cat "$cache/kwok.wanted" 2>/dev/null)" ]; then
  echo "building kwok: some minutes, once" >&2
  (cd "$here" && nice -n 10 go build -trimpath -ldflags "-s -w" -o "$cache/kwok" sigs.k8s.io/kwok/cmd/kwok) >&2
  printf '%s\n' "$wanted" >"$cache/kwok.wanted"
fi
echo "$cache/kwok"
