# shellcheck shell=bash
# GROUP: the daemon served by our own front-end: rings, dirty log, memory, resize, idle cost, attach, NICs
# Run by x.d/test.sh.

FRONTEND_CASES=(front_end dirty_log dirty_log_net memory resize block_size large_requests run_time limits latency_target moves cores connect attach
    idle waiting arrival nic_control nic_offloads nic_limits nic_moves confined access run_state run_state_qmp rivals host under_guests
    image_identity image_formats image_remote)

group_frontend() {
    need_sidecore
    daemon_tests "${FRONTEND_CASES[@]}"
}

# daemon_tests FILE...: each file of tests/tests that was asked for, against the built daemon.
daemon_tests() {
    local file
    for file; do
        [[ -z $CASES || " $CASES " == *" $file "* ]] || continue
        # `--release` shares what need_sidecore has built.
        SIDECORE_BIN=$SIDECORE run_command "$file" cargo test --profile driver -p tests --test "$file" -- --nocapture || true
    done
}
