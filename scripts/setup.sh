#!/bin/sh
# Installs the missing requirements of Flyball's demo and tests, and reports each step.
#
#   scripts/setup.sh             servers (Postgres, Redis, Prometheus), PgBouncer, nginx, a C
#                                compiler, curl and Python for the examples in the docs, the
#                                demo's corpus (WordNet), and, where apt has them, Node.js and
#                                TypeScript for the example of a worker
#   scripts/setup.sh --demo      the same, without PgBouncer, nginx, curl and Python, and without
#                                servers that DATABASE_URL, REDIS_URL or PROMETHEUS_URL replace
#   scripts/setup.sh --browser   Chromium and Node.js, for `make browser-test`
#   scripts/setup.sh --check     installs nothing; lists the missing requirements
#
# Debian and Ubuntu: apt, as root or through sudo. Without either, the packages are unpacked below
# ~/.cache/flyball for this user alone. macOS: Homebrew. No server is started, and no running one is
# stopped.
# Exit codes: 0 everything is installed; 69 something is missing, and one line states the remedy.
set -eu

demo=no browser=no check=no
for word in "$@"; do
  case $word in
    --demo) demo=yes ;;
    --browser) browser=yes ;;
    --check) check=yes ;;
    *) echo "setup: $word is not an option; use --demo, --browser or --check" >&2; exit 64 ;;
  esac
done

cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/flyball/apt
unpacked=$cache/root
as_root=
shim=/usr/sbin/policy-rc.d
shim_is_ours=no
log=

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 69; }
have() { command -v "$1" >/dev/null 2>&1; }

clean_up() {
  if [ "$shim_is_ours" = yes ]; then $as_root rm -f "$shim"; fi
  if [ -n "$log" ]; then rm -f "$log"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# === Detection ===

# The same places in the same order as core/src/stack/find.rs.
has_server() {
  for name in "$@"; do
    have "$name" && return 0
    for dir in /usr/local/bin /usr/bin /usr/local/sbin /usr/sbin \
      /opt/homebrew/opt/redis/bin /opt/homebrew/opt/valkey/bin /opt/homebrew/opt/prometheus/bin \
      /usr/local/opt/redis/bin /usr/local/opt/valkey/bin /usr/local/opt/prometheus/bin \
      /opt/homebrew/opt/pgbouncer/bin /usr/local/opt/pgbouncer/bin "$unpacked/usr/bin" "$unpacked/usr/sbin"; do
      [ -x "$dir/$name" ] && return 0
    done
  done
  return 1
}

# Postgres 15 or newer, with initdb beside it.
is_postgres() {
  [ -x "$1/postgres" ] || return 1
  real=$(readlink -f "$1/postgres" 2>/dev/null) || real=$1/postgres
  [ -x "$(dirname "$real")/initdb" ] || return 1
  case $real in "$unpacked"/*) return 0 ;; esac
  major=$("$real" --version 2>/dev/null | sed -n 's/.*(PostgreSQL) \([0-9]*\).*/\1/p')
  [ "${major:-0}" -ge 15 ]
}

has_postgres() {
  at=$(command -v postgres 2>/dev/null) && is_postgres "$(dirname "$at")" && return 0
  for dir in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin \
    /home/linuxbrew/.linuxbrew/opt/postgresql*/bin "$unpacked"/usr/lib/postgresql/*/bin; do
    is_postgres "$dir" && return 0
  done
  return 1
}

has_cc() {
  if [ "$(uname -s)" = Darwin ]; then xcode-select -p >/dev/null 2>&1; else have cc || have gcc || have clang; fi
}

# HTTPS clients cannot be created on a machine without certificates.
has_certificates() {
  have apt-get || return 0
  [ -n "${SSL_CERT_FILE:-}${SSL_CERT_DIR:-}" ] || [ -s /etc/ssl/certs/ca-certificates.crt ]
}

has_corpus() {
  for dir in /usr/share/wordnet /opt/homebrew/opt/wordnet/dict /usr/local/opt/wordnet/dict "$unpacked/usr/share/wordnet"; do
    [ -r "$dir/data.noun" ] && return 0
  done
  return 1
}

has_chromium() {
  [ -x "/Applications/Chromium.app/Contents/MacOS/Chromium" ] && return 0
  [ -x "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" ] && return 0
  have chromium || have chromium-browser || have google-chrome || have google-chrome-stable
}

# Prints the names of the missing requirements, one word each.
missing() {
  if [ "$browser" = yes ]; then
    has_chromium || echo chromium
    have node || echo node
    return 0
  fi
  given=no
  [ "$demo" = no ] || given=yes
  { [ $given = yes ] && [ -n "${DATABASE_URL:-}" ]; } || has_postgres || echo postgres
  { [ $given = yes ] && [ -n "${REDIS_URL:-}" ]; } || has_server redis-server valkey-server || echo redis
  { [ $given = yes ] && [ -n "${PROMETHEUS_URL:-}" ]; } || has_server prometheus || echo prometheus
  # Only the tests need a pooler, a reverse proxy, and the tools of the examples in the docs.
  if [ "$demo" = no ]; then
    has_server pgbouncer || echo pgbouncer
    have nginx || [ -x /usr/sbin/nginx ] || [ -x "$unpacked/usr/sbin/nginx" ] || echo nginx
    have curl || echo curl
    have python3 || echo python3
  fi
  has_cc || echo cc
  has_certificates || echo certificates
  has_corpus || echo corpus
}

# Prints what only the tests of the worker in TypeScript need, which are skipped without it.
missing_extras() {
  [ "$browser" = no ] && [ "$demo" = no ] || return 0
  have node || echo node
  have tsc || echo typescript
}

# === Debian and Ubuntu ===

candidate() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: //p' | grep -v none || true; }

postgres_package() {
  version=$(candidate postgresql | sed 's/[^0-9].*//')
  if [ "${version:-0}" -ge 15 ]; then echo postgresql; return; fi
  for version in 18 17 16 15; do
    if [ -n "$(candidate postgresql-$version)" ]; then echo postgresql-$version; return; fi
  done
  # Requested all the same: then apt reports that it has none, or the version check fails below.
  echo postgresql
}

apt_packages() {
  for name in "$@"; do
    case $name in
      postgres) postgres_package ;;
      redis) if [ -z "$(candidate redis-server)" ] && [ -n "$(candidate valkey-server)" ]; then echo valkey-server; else echo redis-server; fi ;;
      prometheus) echo prometheus ;;
      nginx) echo nginx-light ;;
      pgbouncer | curl | python3) echo "$name" ;;
      cc) echo gcc; echo libc6-dev ;;
      certificates) echo ca-certificates ;;
      corpus) echo wordnet-base ;;
      chromium) echo chromium ;;
      node) echo nodejs ;;
      typescript) echo node-typescript ;;
    esac
  done
}

# A server package starts its server on installation; this file is Debian's way to prevent that.
forbid_starting() {
  if [ -e "$shim" ] && ! grep -q 'flyball setup' "$shim"; then return; fi
  printf '#!/bin/sh\n# flyball setup: start no services while packages are installed. This file is removed at its end.\nexit 101\n' |
    $as_root tee "$shim" >/dev/null && $as_root chmod 755 "$shim" && shim_is_ours=yes
}

# The demo runs its own servers, so the installed services need not start with the machine.
forbid_starting_later() {
  [ -d /run/systemd/system ] || return 0
  for package in "$@"; do
    case $package in
      postgresql*) unit=postgresql ;;
      redis-server | valkey-server | prometheus | pgbouncer) unit=$package ;;
      nginx*) unit=nginx ;;
      *) continue ;;
    esac
    say "disabling the service $unit, which was installed just now (systemctl enable --now $unit brings it back)"
    $as_root systemctl disable --quiet "$unit" >/dev/null 2>&1 || true
  done
}

apt_get() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1; }

can_become_root() {
  [ "$(id -u)" = 0 ] && return 0
  have sudo || return 1
  as_root=sudo
  sudo -n true 2>/dev/null && return 0
  if [ -t 0 ] && [ -t 2 ]; then
    say "packages must be installed as root: sudo may ask for your password"
    sudo -v && return 0
  fi
  as_root=
  return 1
}

install_with_apt() {
  log=$(mktemp)
  forbid_starting
  packages=$(apt_packages "$@")
  for package in $packages; do
    if [ -z "$(candidate "$package")" ]; then
      say "apt-get update"
      apt_get update || true
      packages=$(apt_packages "$@")
      break
    fi
  done
  # shellcheck disable=SC2086 # one word per package
  set -- $packages
  say "apt-get install -y --no-install-recommends $*"
  if ! apt_get install -y --no-install-recommends "$@"; then
    # The package lists may be older than the archive.
    say "apt-get update, and once more"
    apt_get update || true
    apt_get install -y --no-install-recommends "$@" || { tail -n 15 "$log" >&2; return 1; }
  fi
  forbid_starting_later "$@"
}

# Without root: apt with its own state and cache finds and verifies the packages, dpkg-deb unpacks
# them. Nothing is installed; `flyball services` looks here last.
unpack_with_apt() {
  have apt-get && have dpkg-deb && [ -n "${HOME:-}" ] || return 1
  # These packages do not work when merely unpacked.
  for name in "$@"; do case $name in cc | certificates | curl | python3) return 1 ;; esac; done
  mkdir -p "$cache/state/lists/partial" "$cache/cache/archives/partial" "$unpacked" || return 1
  log=$(mktemp)
  cat >"$cache/apt.conf" <<END
Dir::State "$cache/state";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$cache/cache";
Debug::NoLocking "1";
APT::Sandbox::User "";
END
  export APT_CONFIG="$cache/apt.conf"
  say "no root and no sudo: unpacking below $cache, for this user alone"
  as_root=
  apt_get update || true
  packages=$(apt_packages "$@")
  # shellcheck disable=SC2086 # one word per package
  set -- $packages
  say "apt-get install --download-only $*"
  apt_get install -y --no-install-recommends --download-only "$@" || { tail -n 15 "$log" >&2; return 1; }
  for package in "$cache"/cache/archives/*.deb; do
    [ -e "$package" ] || continue
    dpkg-deb -x "$package" "$unpacked" || return 1
  done
  rm -rf "$cache/cache" "$cache/state"
}

# === macOS ===

brew_packages() {
  for name in "$@"; do
    case $name in
      postgres) echo postgresql@17 ;;
      redis | prometheus | pgbouncer | nginx | node | curl | python3) echo "$name" ;;
      corpus) echo wordnet ;;
    esac
  done
}

install_with_brew() {
  packages=$(brew_packages "$@" | tr '\n' ' ')
  if [ -n "$packages" ]; then
    say "brew install $packages"
    # shellcheck disable=SC2086 # one word per package
    brew install --quiet $packages >&2 || return 1
  fi
  for name in "$@"; do
    [ "$name" = chromium ] || continue
    say "brew install --cask chromium"
    brew install --quiet --cask chromium >&2 || return 1
  done
}

# === The remedy in one line ===

help_line() {
  for name in "$@"; do
    [ "$name" = cc ] && [ "$(uname -s)" = Darwin ] && { echo "xcode-select --install"; return; }
  done
  if have apt-get; then
    old=$(candidate postgresql | sed 's/[^0-9].*//')
    for name in "$@"; do
      if [ "$name" = postgres ] && [ -n "$old" ] && [ "$old" -lt 15 ] && [ "$(postgres_package)" = postgresql ]; then
        echo "sudo apt-get install -y postgresql-common && sudo /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh -y && sudo apt-get install -y postgresql-17"
        return
      fi
    done
    echo "sudo apt-get update && sudo apt-get install -y $(apt_packages "$@" | tr '\n' ' ')"
  elif [ "$(uname -s)" = Darwin ] || have brew; then
    have brew || { echo "get Homebrew from https://brew.sh"; return; }
    echo "brew install $(brew_packages "$@" | tr '\n' ' ')"
  else
    echo "install with your system's package manager: $*"
  fi | sed 's/ *$//'
}

# === Main ===

if [ "$browser" = no ] && ! have cargo && [ ! -x "${HOME:-}/.cargo/bin/cargo" ]; then
  fail "Rust is not installed: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
fi

# shellcheck disable=SC2046 # one word per thing
set -- $(missing)
if [ $# -eq 0 ]; then
  # shellcheck disable=SC2046 # one word per thing
  set -- $(missing_extras)
  [ $# -gt 0 ] && [ "$check" = no ] && have apt-get || exit 0
  # Nobody is asked for a password for them.
  if [ "$(id -u)" != 0 ]; then sudo -n true 2>/dev/null || exit 0; fi
  can_become_root || exit 0
  say "missing, for a few tests only: $*"
  install_with_apt "$@" || say "not installed; these tests will be skipped and named"
  exit 0
fi
if [ "$check" = yes ]; then fail "missing: $*; what would help: $(help_line "$@")"; fi

say "missing: $*"
if have apt-get; then
  # shellcheck disable=SC2046 # one word per thing
  if can_become_root; then install_with_apt "$@" $(missing_extras) || install_with_apt "$@" || true; else unpack_with_apt "$@" || true; fi
elif have brew; then
  install_with_brew "$@" || true
fi

# shellcheck disable=SC2046 # one word per thing
set -- $(missing)
[ $# -eq 0 ] || fail "still missing: $*; what would help: $(help_line "$@")"
say "all there"
