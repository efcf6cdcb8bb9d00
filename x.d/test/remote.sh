# shellcheck shell=bash
# GROUP: disks and NICs of other machines: either daemon killed, a second IOhost, a bad wire; a real guest with root
# With --all the daemons are killed for ten minutes, and the guest's frames are lost, doubled and late. Run by x.d/test.sh.
# shellcheck disable=SC2034  # variables here are read by x.d/remote.sh

group_remote() {
    need_sidecore
    remote_driver
    remote_nics
    if ((EUID != 0)); then
        [[ -n $CASES && " $CASES " != *' ethernet '* ]] || skipped ethernet 'interfaces need root'
        [[ -n $CASES && " $CASES " != *' guest '* ]] || skipped guest 'network namespaces need root'
    else
        need_guests
        need_guest_image
        remote_ethernet
        # Its namespace; cases have their own.
        end_own
        run_cases case_guest
    fi
}

# Two daemons and a front-end of ours: tests/tests/remote.rs, and what it counted.
remote_driver() {
    [[ -z $CASES || " $CASES " == *' driver '* ]] || return 0
    local seconds=6
    [[ -z $TEST_ALL ]] || seconds=600
    run_command driver env SIDECORE_BIN="$SIDECORE" "REMOTE_SECONDS=$seconds" \
        cargo test --profile driver -p tests --test remote -- --nocapture || true
    remote_said driver
}

# The same with a NIC: tests/tests/remote_nic.rs.
remote_nics() {
    [[ -z $CASES || " $CASES " == *' nics '* ]] || return 0
    run_command nics env SIDECORE_BIN="$SIDECORE" cargo test --profile driver -p tests --test remote_nic -- --nocapture || true
    remote_said nics
}

# remote_said NAME: what they counted.
remote_said() {
    sed -n 's/^\(test [^ ]* \.\.\. \)\{0,1\}\(remote: .*\)/\2/p' "$BUILD/test/$GROUP-$1.log" >&2
}

# The same without IP: both daemons in one namespace, at the two ends of a pair of interfaces. With --all once more without
# keys, and the dissector of packaging/ is shown what was on the wire.
remote_ethernet() {
    [[ -z $CASES || " $CASES " == *' ethernet '* ]] || return 0
    local namespace mtu
    namespace=$(namespace_name ethernet)
    own_namespace "$namespace"
    for mtu in 1500 9000; do
        ethernet_pair "$namespace" "$mtu"
        ethernet_run "$namespace" "ethernet/$mtu"
        ip -n "$namespace" link del vmhost
    done
    if [[ -z $TEST_ALL ]]; then
        skipped dissector 'tshark is long to install: --all'
        return 0
    fi
    need_packages tshark
    ethernet_pair "$namespace" 1500
    remote_dissector "$namespace"
}

# ethernet_pair NAMESPACE MTU
ethernet_pair() {
    ip -n "$1" link add vmhost mtu "$2" type veth peer name iohost mtu "$2"
    ip -n "$1" link set vmhost up
    ip -n "$1" link set iohost up
}

# ethernet_run NAMESPACE NAME [WORD=VALUE...]
ethernet_run() {
    run_command "$2" env SIDECORE_BIN="$SIDECORE" REMOTE_INTERFACES=vmhost,iohost "${@:3}" \
        ip netns exec "$1" cargo test --profile driver -p tests --test remote -- --nocapture --ignored ethernet || true
    sed -n 's/^\(test [^ ]* \.\.\. \)\{0,1\}\(remote: .*\)/\2/p' "$BUILD/test/$GROUP-${2//\//-}.log" >&2
}

# remote_dissector NAMESPACE: every frame is known for one, and the records of a session without keys are read.
remote_dissector() {
    local capture=$BUILD/test/remote-link.pcapng shark said record wrong
    ip netns exec "$1" tshark -q -i iohost -w "$capture" >"$BUILD/test/remote-tshark.log" 2>&1 3>&- &
    shark=$!
    own "$shark"
    until [[ -s $capture ]]; do
        alive "$shark" || { failed dissector "tshark does not capture: $(<"$BUILD/test/remote-tshark.log")"; return 0; }
        sleep 0.05
    done
    ethernet_run "$1" ethernet/plain REMOTE_SECURITY=none
    kill -INT "$shark"
    wait "$shark" 2>/dev/null || true
    disown_pid "$shark"
    dissect() { tshark -X "lua_script:$ROOT/packaging/sidecore-link.lua" -r "$capture" "$@" 2>>"$BUILD/test/remote-tshark.log"; }
    wrong=$(dissect -Y 'sidecore.wrong || (eth.type == 0x88b5 && !sidecore) || _ws.lua.error' | wc -l)
    said=$(dissect -Y sidecore -T fields -e sidecore.record | tr ',' '\n' | sort | uniq -c | sort -rn | awk '{ printf "%s %s, ", $1, $2 }')
    for record in ack part piece 'done' bind bound; do
        if [[ $said != *" $record,"* ]]; then
            failed dissector "it has seen no $record: $said"
            return 0
        fi
    done
    if ((wrong)); then
        failed dissector "$wrong frames are not what it knows: tshark -X lua_script:packaging/sidecore-link.lua -r $capture"
    else
        passed dissector "${said%, }"
    fi
}

# A stock guest, as ./x demo remote shows it.
case_guest() {
    if [[ $GUEST_SERVER != sidecore ]]; then
        skipped '' "$GUEST_SERVER has no disks of other machines"
        return 0
    fi
    [[ -z $TEST_ALL ]] || REMOTE_LOSS=yes
    remote_world
    remote_load
    remote_end
    awk -F'\t' '$3 ~ /served/ { print "remote: " $2 ": " $3 }' "$OUTCOMES" >&2
}
