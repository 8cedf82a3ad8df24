# Where debootstrap finds this machine's release of Debian: to be sourced.

# Makes a minimal system in a folder, with further packages besides (separated by commas). It is of the same release as
# this machine, so that a binary that was built here finds its C library; and of its architecture, unless another is named.
# `debian_date` is then the time of the archive's state.
debian_system() {
  local folder="$1" packages="$2" architecture="${3:-$(dpkg --print-architecture)}" release mirror
  # shellcheck source=/dev/null
  release="$(. /etc/os-release && echo "$VERSION_CODENAME")"
  mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
    grep /debian/ | grep -v -e -security | head -n 1)"
  [ -n "$mirror" ] || { echo "apt knows no archive of Debian" >&2; return 1; }
  debootstrap --arch "$architecture" --variant=minbase --include="$packages" "$release" "$folder" "$mirror" >&2
  # shellcheck disable=SC2034
  debian_date="$(date --date "$(sed -n 's/^Date: //p' "$folder"/var/lib/apt/lists/*Release | head -n 1)" +%s)"
  rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/*
}

# Removes from a system what is otherwise at each run: logs, caches, and what tells of the machine that made it.
debian_without_traces() {
  local folder="$1"
  find "$folder/var/log" -type f -delete
  rm -rf "$folder"/var/cache/{ldconfig/aux-cache,debconf/*-old,apt/*.bin} "$folder"/var/lib/dpkg/*-old
  rm -f "$folder"/etc/{hostname,resolv.conf,machine-id,passwd-,group-,shadow-,gshadow-} "$folder"/var/lib/dbus/machine-id
}
