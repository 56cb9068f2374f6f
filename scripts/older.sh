#!/usr/bin/env bash
# Builds the program of the version before, for the tests of an upgrade, and prints its path. Prints
# the reason on standard error and fails if there is no such version, or if the history of the
# repository is not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The file has comments, and the commit on a line of its own.
commit=$(sed '/^#/d' scripts/older-version)
if [ -z "$commit" ]; then
  echo "there is no version before: scripts/older-version names no commit" >&2
  exit 1
fi

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
