# A built program, which may be for another architecture than this machine's: to be sourced.

# The architecture of a program, as its ELF header names it.
program_architecture() {
  local machine
  machine="$(readelf --file-header "$1" | sed -n 's/^ *Machine: *//p')"
  case "$machine" in
    *X86-64) echo x86_64 ;;
    AArch64) echo aarch64 ;;
    *)
      echo "$1 is for ${machine:-no machine}, which nothing is packaged for" >&2
      return 1
      ;;
  esac
}

# The same, as Debian and container images name it.
program_debian_architecture() {
  local architecture
  architecture="$(program_architecture "$1")"
  case "$architecture" in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
  esac
}

# Runs it, through the emulator of Debian's qemu-user-static if it is for another machine.
program_run() {
  local architecture
  architecture="$(program_architecture "$1")"
  if [ "$architecture" = "$(uname -m)" ]; then
    "$@"
  else
    "qemu-$architecture-static" -L "/usr/$architecture-linux-gnu" "$@"
  fi
}

program_version() { program_run "$1" --version | cut -d ' ' -f 2; }

# Writes it without its symbols to another file.
program_strip() {
  local architecture strip=strip
  architecture="$(program_architecture "$1")"
  [ "$architecture" = "$(uname -m)" ] || strip="$architecture-linux-gnu-strip"
  "$strip" -o "$2" "$1"
  chmod 755 "$2"
}

# Writes manual pages into a folder.
program_man() { program_run "$1" man "$2" >/dev/null; }

# Sets the time of all that is packaged, unless it is set: that of the last commit.
source_date_epoch() {
  local here
  here="$(dirname "${BASH_SOURCE[0]}")"
  SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || echo 0)}"
  export SOURCE_DATE_EPOCH
}
