# shellcheck shell=bash
# GROUP: guests and front-ends that lie, stall, storm and vanish, beside a disk that must not notice
# Run by x.d/test.sh. Each module of tests/tests/hostile named here is an outcome; docs/security.md says which row is where.

HOSTILE_CASES=(hostile_split hostile_packed hostile_blk hostile_storm hostile_races lost_memory
    bad_front_end bad_memory bad_rings bad_connection names connections bounds nic_storm soak)
# On a FUSE disk that hangs.
HOSTILE_FUSE_CASES=(attacks dead_disk dead_mount)

group_hostile() {
    need_sidecore
    hostile_tests "${HOSTILE_CASES[@]}"
    # Each of its kinds has a test of its own above.
    if [[ -n $TEST_ALL || " $CASES " == *' crowd '* ]]; then
        hostile_tests crowd
    elif [[ -z $CASES ]]; then
        skipped crowd 'takes minutes: ./x test --all, or ./x test hostile/crowd'
    fi
    if ((EUID != 0)) || [[ ! -e /dev/fuse ]]; then
        local module
        for module in "${HOSTILE_FUSE_CASES[@]}"; do
            skipped "$module" 'needs root and /dev/fuse: the disk that hangs is a FUSE file'
        done
    else
        need_packages util-linux mount
        hostile_tests "${HOSTILE_FUSE_CASES[@]}"
    fi
    show_measured
}

# hostile_tests MODULE...: one test at a time, because they measure; what they print is kept.
hostile_tests() {
    local module
    for module; do
        [[ -z $CASES || " $CASES " == *" $module "* ]] || continue
        # `--release` shares what need_sidecore has built.
        SIDECORE_BIN=$SIDECORE run_command "$module" cargo test --profile driver -p tests --test hostile -- \
            "$module::" --nocapture --test-threads=1 || true
    done
}

# show_measured: what the rows printed, so that the neighbour's rate is on record.
show_measured() {
    local log rates=$BUILD/test/hostile.rates
    for log in "$BUILD"/test/hostile-*.log; do
        [[ ! -f $log ]] || sed -n 's/^\(test [^ ]* \.\.\. \)\{0,1\}\(.*; the neighbours\{0,1\} had .*\)/\2/p' "$log"
    done >"$rates"
    say "$(wc -l <"$rates") rates of the neighbour are in $rates; the lowest: $(lowest_rate "$rates")"
}

# lowest_rate FILE: the row in which the neighbour kept least.
lowest_rate() {
    sed -n 's/^\([^:]*\):.*: \([0-9]*\)%.*/\2% (\1)/p' "$1" | sort -n | head -n 1
}
