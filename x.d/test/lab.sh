# shellcheck shell=bash
# The lab: guests on real KVM, and how many exits a request costs with QEMU, vhost-net and Sidecore.
# Run by x.d/test.sh.

group_lab() { # as `suite` does: one case, which may be run here
    need_packages jq
    run_command "$CASES" "lab_$CASES" || true
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
