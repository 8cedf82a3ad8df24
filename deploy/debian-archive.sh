# Where debootstrap finds this machine's release of Debian: to be sourced.

# Makes a minimal system in a folder, with further packages besides (separated by commas). It is of the same release as
# this machine, so that a binary that was built here finds its C library.
debian_system() {
  local folder="$1" packages="$2" release mirror
  # shellcheck source=/dev/null
  release="$(. /etc/os-release && echo "$VERSION_CODENAME")"
  mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
    grep /debian/ | grep -v -e -security | head -n 1)"
  [ -n "$mirror" ] || { echo "apt knows no archive of Debian" >&2; return 1; }
  debootstrap --variant=minbase --include="$packages" "$release" "$folder" "$mirror" >&2
  rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/*
}
