# shellcheck shell=bash
# GROUP: the lab: guests on real KVM, and how many exits a request costs with QEMU, vhost-net and Sidecore
# Run by x.d/test.sh.

group_lab() {
    need_packages jq
    if [[ -z $CASES && -z $TEST_ALL ]]; then
        # Whether a sidecore sleeps, and is then kicked, depends on the speed of the machine that is emulated.
        skipped smoke 'counts depend on the speed of an emulated machine: ./x test --all, or ./x test lab/smoke'
    elif [[ -z $CASES || " $CASES " == *' smoke '* ]]; then
        if ((EUID == 0)); then
            run_command smoke lab_smoke || true
        else
            skipped smoke 'counting exits needs root'
        fi
    fi
    if [[ -n $TEST_ALL || " $CASES " == *' quick '* ]]; then run_command quick lab_quick || true; fi
}

# A kick is an exit with those who wait for kicks, and there is none with a sidecore that polls. The counts of the
# others show that something was counted.
lab_smoke() {
    local rows=$TEST_DIR/lab-smoke.json
    "$ROOT/x" lab smoke --quick --json >"$rows" || return
    jq --exit-status --slurp '
        def at($load; $who): [.[] | select(.name == "lab.\($load).doorbell_exits_per_op" and .who == $who)]
            | if length == 1 then .[0].value else error("no doorbells of \($who) for \($load)") end;
        def exits($load; $who): [.[] | select(.name == "lab.\($load).exits_per_op" and .who == $who)]
            | if length == 1 then .[0].value else error("no exits of \($who) for \($load)") end;
        . as $all
        | [("blk.randread.qd1", "net.udp_rr") as $load
            | ("qemu", (if $load == "net.udp_rr" then "vhost-net" else empty end)) as $who
            | ($all | at($load; $who)) as $theirs | ($all | at($load; "sidecore")) as $ours
            | select($theirs < 0.9 or $ours > 0.01 or ($all | exits($load; "sidecore")) <= 0)
            | "\($load): \($theirs) doorbells an operation with \($who), \($ours) with sidecore"] as $wrong
        | if $wrong == [] then true else error($wrong | join("; ")) end
    ' "$rows"
}

lab_quick() { "$ROOT/x" lab exits --quick --json >"$TEST_DIR/lab-quick.json"; }
