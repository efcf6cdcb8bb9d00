# shellcheck shell=bash
# What a request costs, for --all or by name: the scheduling bench runs, the one of peers too; run state beside the kernel's accounts.
# Run by x.d/test.sh.

group_bench() { # as `suite` does: one case
    need_rust
    need_packages valgrind util-linux jq
    if [[ $CASES == peers ]]; then need_testpmd; fi
    need_sidecore
    run_cargo build --release -p bench
    if [[ $CASES == runstate ]] && ! runstate_may; then
        skipped runstate 'this host shows nobody here what runs: sidecore doctor says why (ebpf)'
    else
        run_command "$CASES" "${CASES}_rows" || true
    fi
}

# runstate_may: whether a program may be loaded that sees who runs.
runstate_may() {
    [[ $("$SIDECORE" doctor --json | jq -r '.checks[] | select(.name == "ebpf").state') == ok ]]
}

# A disk's row and a NIC's: each has a number of all that are compared, whatever else the machine does, and says what the
# cores had to give.
peers_rows() {
    local rows=$TEST_DIR/bench-peers.json
    SIDECORE_BIN=$SIDECORE "${CARGO_TARGET_DIR:-$ROOT/target}/release/bench" peers --quick --disturbed --rounds 1 \
        --only blk.null.own,net.split.64.echo --json >"$rows" || return
    cat "$rows"
    jq --exit-status --slurp '
        INDEX(.[] | select(.name); .name) as $rows
        | [["blk.null.own.read.32", "sidecore", "qemu-storage-daemon"], ["net.split.64.echo", "sidecore", "dpdk"]]
        | all(.[]; $rows[.[0]] as $row | $row.share != null
            and (.[1:] - [$row.of[] | select(.value > 0).who] == []))' "$rows"
}

# Wherever a switch is not seen the next one mends it; what times are is not judged. Of a kernel that hides some threads
# from tracing (docs/decisions/0016-runstate.md) one sample in a thousand differs; a rule that is wrong is wrong everywhere.
runstate_rows() {
    local rows=$TEST_DIR/bench-runstate.json
    "${CARGO_TARGET_DIR:-$ROOT/target}/release/bench" runstate --quick --json >"$rows" || return
    cat "$rows"
    jq --exit-status --slurp '
        INDEX(.name) as $rows
        | $rows."runstate.agreement.switches".value >= 0.99 and $rows."runstate.agreement.time".value >= 0.9
            and $rows."runstate.agreement.samples".value >= 1000
            and $rows."runstate.agreement.slices".value >= 0.99 and $rows."runstate.agreement.slices_seen".value >= 10
            and all("runstate.look_ns", "runstate.switch.followed_ns"; $rows[.].value > 0)' "$rows"
}

# What it says is there and a number; how large it is, is not judged.
schedule_rows() {
    local rows=$TEST_DIR/bench-schedule.json
    SIDECORE_BIN=$SIDECORE "${CARGO_TARGET_DIR:-$ROOT/target}/release/bench" schedule --quick --json >"$rows" || return
    jq --exit-status --slurp '
        def mixed: "rr.p50_ratio", "rr.p99_ratio", "rr.alone.p50_ns", "rr.alone.p99_ns",
            "rr.mixed.p50_ns", "rr.mixed.p99_ns", "stream.sum_ratio", "s_ns", "c_ns";
        def rates: "1k", "5k", "10k", "20k", "50k";
        def positive: "schedule." + (
            "mixed." + ("", "null.") + ("", "off.", "hurried.") + mixed,
            "between." + rates + ".poll." + ("cpu_percent", "p50_us", "p99_us"),
            "between." + rates + ".notify." + ("cpu_percent", "p50_us", "p99_us", "kicks_per_request"),
            "between." + rates + ".adaptive." + ("cpu_percent", "p50_us", "p99_us"),
            "scaling." + ("1", "16", "256", "4096") + "." + ("ns", "iops"),
            "scaling.4096_over_1.ns_ratio");
        def present: "schedule." + ("idle1000.cpu_percent", "saturated.kicks_per_request");
        INDEX(.name) as $rows
        | [positive | select($rows[.].who != "sidecore" or $rows[.].value <= 0)] as $wrong
        | [present | select($rows[.].who != "sidecore" or $rows[.].value == null)] as $missing
        | if $wrong + $missing == [] then true
            else error("not there, or not positive: " + ($wrong + $missing | join(", "))) end
    ' "$rows"
}
