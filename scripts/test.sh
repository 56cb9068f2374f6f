#!/usr/bin/env bash
# Runs all tests; a test that fails is run once more by itself, because the tests talk to real servers by real clocks and a
# busy machine can be too slow for one of them. What fails twice, or does not compile, fails. What passed only the second
# time is named at the end, so that nobody takes it for sound. Arguments go to `cargo test`.
set -uo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT

cargo test --workspace --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" -eq 0 ] && exit 0

# Cargo names the target of a failed run ("--lib", "--test it", "--doc") after the list of its failed tests.
failed=()
while IFS= read -r line; do failed+=("$line"); done < <(awk '
  /^failures:$/ { delete names; count = 0; listing = 1; next }
  listing && /^    [^ ].*$/ { names[++count] = substr($0, 5); next }
  listing && /^(test result|----)/ { listing = 0 }
  /to rerun pass `/ { match($0, /`[^`]*`/); target = substr($0, RSTART + 1, RLENGTH - 2)
    for (i = 1; i <= count; i++) print target "\t" names[i]; count = 0 }
' "$log")
[ "${#failed[@]}" -eq 0 ] && exit "$status"
if [ "${#failed[@]}" -gt 5 ]; then
  echo "${#failed[@]} tests failed: too many to be the machine's fault; none is run again." >&2
  exit "$status"
fi

again=()
for line in "${failed[@]}"; do
  IFS=$'\t' read -r target name <<<"$line"
  echo "--- once more by itself: $name"
  # shellcheck disable=SC2086 # The target is words: an option and what it names.
  cargo test $target -- --exact "$name" --test-threads 1 2>&1 | tee "$log"
  grep -q '^test result: ok. 1 passed' "$log" || exit 101
  again+=("$name")
done
echo "All tests passed, these only when they ran by themselves:"
printf '  %s\n' "${again[@]}"
