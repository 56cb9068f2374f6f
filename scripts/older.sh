#!/usr/bin/env bash
# Builds the program of the version before, for the tests of an upgrade, and prints its path. Prints
# the reason on standard error and fails if the history of the repository is not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The version before: the commit whose programs must run beside those of this one. Each release
# names its predecessor in scripts/older-version.
commit=$(cat scripts/older-version)

sources=$PWD/target/older/$commit
program=$sources/flyball
if [ ! -x "$program" ]; then
  if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
    echo "the version before, commit $commit, is not in this clone: git fetch --unshallow" >&2
    exit 1
  fi
  mkdir -p "$sources"
  git archive "$commit" | tar -x -C "$sources"
  # Both versions share what they compile alike. The program of this version, if it was built, gets
  # its place back.
  built=target/debug/flyball
  if [ -e "$built" ]; then cp -p "$built" "$sources/newer"; fi
  (cd "$sources" && CARGO_TARGET_DIR=$OLDPWD/target cargo build --workspace --bin flyball >&2)
  mv "$built" "$program"
  if [ -e "$sources/newer" ]; then mv "$sources/newer" "$built"; fi
fi
echo "$program"
