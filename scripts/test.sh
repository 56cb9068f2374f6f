#!/usr/bin/env bash
# Runs all tests in parts (it, waiting, timed, lab, unit, doc) and prints the time and the counts of
# each, and the slowest tests. With arguments, runs `cargo test` with them as a single part.
# FLYBALL_TEST_THREADS sets the number of concurrent integration tests.
#
# Two rows of parts run side by side:
# - The integration tests (it) use real servers and real clocks and wait more than they compute, so
#   more of them run at the same time than there are cores.
# - Those that measure rates and delays (timed), and the demo (lab), suffer from a loaded machine:
#   fewer run at a time, and they have precedence; all others and their servers run at the lowest
#   priority. Then come those that wait most (waiting), the unit tests and the examples of the
#   documentation (unit, doc).
#
# A failed test runs once more by itself after all others, because a busy machine may have been too
# slow; if it then passes, it is named at the end. A test that fails twice, or does not compile,
# fails the run.
set -uo pipefail

# Path fragments of the tests that measure time.
timed=(
  api::stream
  governor::apns_by_latency
  governor::quota_halved
  governor::slots
  notify::slots
  providers::pool::limits::without_shedding
  reindex::backfill::a_stopped_handler
  reindex::backfill::a_turned_knob
  reindex::backfill::five_documents_a_second
  runner::late_commits
  runner::process::a_rate_of_zero
  runner::process::an_edit
  runner::process_kill::the_jobs_of_a_killed_worker
  runner::push_back
  throttle::redis::a_redis_that_hangs
  throttle::redis::a_redis_that_was_never_there
)

# Path fragments of the tests that wait for real time to pass, such as that of a lease, and load the
# machine little meanwhile.
waiting=(
  api::hostile_clients::a_connection_that_does_not_finish
  calibrate::
  cron::occurrences
  gateway::processes::the_connections_of_a_killed_process
  governor::complaints
  governor::failover
  governor::feedback
  governor::process
  governor::trip
  notify::kind::with_all_accounts_gone
  notify::laws::recipients::a_message_stays_away
  providers::pool::accounts
  runner::chaos
  runner::conservation
  runner::fairness
  runner::heartbeat
  runner::idle
  runner::process
  runner::remote
  runner::stores_away
  runner::worker::a_throttled_answer_pauses
  signals::sources::a_process_reads
  throttle::cluster::primaries
  throttle::limitlion::a_lasting_burst
  throttle::loss
  throttle::windows::a_burst_of_eight_real_seconds
)

dir=$(mktemp -d)
# The parts that run beside the others, as a process group; empty while there are none.
beside=
trap '[ -z "$beside" ] || kill -- "-$beside" 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
cores=$(getconf _NPROCESSORS_ONLN)

# The harness of a stable compiler tells the time of each test only where this variable is set,
# which cargo gives to the programs that it runs and not to the compiler.
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z.-' 'A-Z__')
runner="CARGO_TARGET_${host}_RUNNER=env RUSTC_BOOTSTRAP=1"
with_times=(-Z unstable-options --report-time)

report=()
skipped=()
again=()
status=0

# Prints the failed tests of a log, one per line: the options that select the target, a tab, the
# test's name. Cargo prints the target ("--lib", "--test it", "-p name --doc") after the list of its
# failed tests.
failed_tests() {
  awk '
    /^failures:$/ { delete names; count = 0; listing = 1; next }
    listing && /^    [^ ].*$/ { names[++count] = substr($0, 5); next }
    listing && /^(test result|----)/ { listing = 0 }
    /to rerun pass `/ { match($0, /`[^`]*`/); target = substr($0, RSTART + 1, RLENGTH - 2)
      for (i = 1; i <= count; i++) print target "\t" names[i]; count = 0 }
  ' "$1"
}

# Runs one part: its name, its niceness, then the arguments of cargo test. Leaves its log, exit code
# and time in files, because parts run side by side.
part() {
  local name=$1 niceness=$2 began=$SECONDS environment=(env)
  shift 2
  [[ " $* " != *" --report-time "* ]] || environment+=("$runner")
  nice -n "$niceness" "${environment[@]}" cargo test --no-fail-fast "$@" 2>&1 | tee "$dir/$name.log"
  echo "${PIPESTATUS[0]}" >"$dir/$name.code"
  echo $((SECONDS - began)) >"$dir/$name.took"
}

# Counts the tests of a part that ran, and runs those that failed once more.
judge() {
  local name=$1 log="$dir/$1.log" code line failed=()
  code=$(cat "$dir/$name.code" 2>/dev/null || echo 1)
  while IFS= read -r line; do skipped+=("${line#skipped: }"); done < <(grep '^skipped: ' "$log")
  report+=("$(awk -v name="$name" -v took="$(cat "$dir/$name.took")" '
    /^test result: / { passed += $4; failed += $6; ignored += $8 }
    END { printf "%-7s %5d passed %4d failed %4d ignored %4d min %02d s", name, passed, failed, ignored, took / 60, took % 60 }
  ' "$log")")
  [ "$code" -eq 0 ] && return

  while IFS= read -r line; do failed+=("$line"); done < <(failed_tests "$log")
  if [ "${#failed[@]}" -eq 0 ]; then
    status=$code
  elif [ "${#failed[@]}" -gt 5 ]; then
    echo "${#failed[@]} tests failed: too many to be the machine's fault; none runs again." >&2
    status=$code
  else
    for line in "${failed[@]}"; do once_more "$line"; done
  fi
}

# Runs a failed test by itself, in the binary that was built for all: with the features of one
# package everything would be compiled again.
once_more() {
  local target test
  IFS=$'\t' read -r target test <<<"$1"
  echo "--- once more by itself: $test"
  # shellcheck disable=SC2086 # The target is words: an option and its value.
  cargo test --workspace $target -- --exact "$test" --test-threads 1 2>&1 | tee "$dir/again.log"
  if grep -q '^test result: ok. 1 passed' "$dir/again.log"; then
    again+=("$test")
  else
    status=101
  fi
}

if [ "$#" -gt 0 ]; then
  part tests 0 "$@"
  judge tests
else
  began=$SECONDS
  # Without the older program, as in a shallow clone or before the first version, the tests of an
  # upgrade are skipped and named.
  if older=$(scripts/older.sh); then export FLYBALL_OLDER_PROGRAM=$older; fi
  cargo test --workspace --no-run || exit
  took=$((SECONDS - began))
  report+=("$(printf 'build %46d min %02d s' $((took / 60)) $((took % 60)))")
  # Every test has a database of its own, so the servers' files are in memory where there is room.
  room=$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)
  free=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null)
  # Tests run programs that they write.
  noexec=$(grep -c '^[^ ]* /dev/shm [^ ]* [^ ]*noexec' /proc/mounts 2>/dev/null)
  if [ "${room:-0}" -gt 4000000 ] && [ "${free:-0}" -gt 8000000 ] && [ "${noexec:-1}" -eq 0 ]; then
    export TMPDIR=/dev/shm
  fi
  # Each HTTP client of each program reads all certificates that it trusts. One is enough here, where
  # none is the right one.
  certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
  if [ -r "$certificates" ]; then
    sed '/END CERTIFICATE/q' "$certificates" >"$dir/certificate.pem"
    export SSL_CERT_FILE="$dir/certificate.pem"
    unset SSL_CERT_DIR
  fi
  not_timed=("${timed[@]/#/--skip=}")
  not_waiting=("${waiting[@]/#/--skip=}")
  began=$SECONDS
  beside() {
    part timed 0 --workspace --test it -- "${timed[@]}" \
      --test-threads "$((cores * 2))" "${with_times[@]}"
    # With the features of the whole workspace, so that nothing is compiled again.
    part lab 0 --workspace --test demo -- "${with_times[@]}"
    part waiting 19 --workspace --test it -- "${waiting[@]}" "${not_timed[@]}" \
      --test-threads "$((cores * 4))" "${with_times[@]}"
    part unit 19 --workspace --lib --bins -- "${with_times[@]}"
    part doc 19 --workspace --doc
  }
  # With job control they are a process group of their own.
  set -m
  beside >/dev/null &
  beside=$!
  set +m
  part it 19 --workspace --test it -- "${not_timed[@]}" "${not_waiting[@]}" \
    --test-threads "${FLYBALL_TEST_THREADS:-$((cores * 4))}" "${with_times[@]}"
  wait "$beside"
  beside=
  cat "$dir"/{waiting,timed,lab,unit,doc}.log
  for name in unit it waiting timed lab doc; do judge "$name"; done
  took=$((SECONDS - began))
  report+=("$(printf 'all %48d min %02d s' $((took / 60)) $((took % 60)))")
fi

echo
printf '%s\n' "${report[@]}"
slowest=$(sed -nE 's/^test (.*) \.\.\. [a-zA-Z]+ <([0-9.]+)s>$/\2 \1/p' "$dir"/*.log |
  sort -rn | head -20)
if [ -n "$slowest" ]; then
  echo "The slowest, in seconds:"
  sed 's/^/  /' <<<"$slowest"
fi
if [ "${#skipped[@]}" -gt 0 ]; then
  echo "${#skipped[@]} checked nothing on this machine:"
  printf '  %s\n' "${skipped[@]}"
fi
if [ "${#again[@]}" -gt 0 ]; then
  echo "Failed at first and passed by themselves, which is a bug of the test:"
  printf '  %s\n' "${again[@]}"
fi
exit "$status"
