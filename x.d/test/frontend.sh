# shellcheck shell=bash
# GROUP: the daemon served by our own front-end: rings, dirty log, memory, resize, idle cost, attach, NICs
# Run by x.d/test.sh.

FRONTEND_CASES=(front_end dirty_log dirty_log_net memory resize block_size large_requests run_time limits latency_target moves cores connect attach
    idle waiting arrival nic_control nic_offloads limits_nic moves_nic confined access run_state run_state_qmp rivals host under_guests
    image_identity image_formats image_remote)

group_frontend() {
    need_sidecore
    daemon_tests "${FRONTEND_CASES[@]}"
}

# daemon_tests MODULE...: each module of tests/tests/frontend that was asked for, against the built daemon.
daemon_tests() {
    local module
    for module; do
        [[ -z $CASES || " $CASES " == *" $module "* ]] || continue
        # `--release` shares what need_sidecore has built.
        SIDECORE_BIN=$SIDECORE run_command "$module" cargo test --profile driver -p tests --test frontend -- "$module::" --nocapture || true
    done
}
