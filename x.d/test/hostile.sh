# shellcheck shell=bash
# GROUP: guests and front-ends that lie, stall, storm and vanish, beside a disk that must not notice
# Run by x.d/test.sh. Each file of tests/tests named here is an outcome; docs/security.md says which row is where.

HOSTILE_CASES=(hostile_split hostile_packed hostile_blk hostile_storm hostile_races lost_memory
    bad_front_end bad_memory bad_rings bad_connection connections attacks dead_disk)

group_hostile() {
    # shellcheck source=x.d/test/frontend.sh
    source "$ROOT/x.d/test/frontend.sh"
    need_sidecore
    daemon_tests "${HOSTILE_CASES[@]}"
    show_measured
}

# show_measured: what the rows printed, so that the neighbour's rate is on record.
show_measured() {
    local log
    for log in "$BUILD"/test/hostile-*.log; do
        [[ ! -f $log ]] || sed -n '/; the neighbour had /p' "$log"
    done >"$BUILD/test/hostile.rates"
    say "the neighbour's rates are in $BUILD/test/hostile.rates"
}
