# shellcheck shell=bash
# GROUP: disks of other machines: either daemon killed, a second IOhost, a bad wire; a real guest with root
# With --all the daemons are killed for ten minutes, and the guest's frames are lost, doubled and late. Run by x.d/test.sh.
# shellcheck disable=SC2034  # variables here are read by x.d/remote.sh

group_remote() {
    need_sidecore
    remote_driver
    if ((EUID != 0)); then
        [[ -n $CASES && " $CASES " != *' ethernet '* ]] || skipped ethernet 'interfaces need root'
        [[ -n $CASES && " $CASES " != *' guest '* ]] || skipped guest 'network namespaces need root'
    else
        need_guests
        need_guest_image
        remote_ethernet
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
    sed -n 's/^\(test [^ ]* \.\.\. \)\{0,1\}\(remote: .*\)/\2/p' "$BUILD/test/$GROUP-driver.log" >&2
}

# The same without IP: both daemons in one namespace, at the two ends of a pair of interfaces.
remote_ethernet() {
    [[ -z $CASES || " $CASES " == *' ethernet '* ]] || return 0
    local namespace mtu
    namespace=$(namespace_name ethernet)
    own_namespace "$namespace"
    for mtu in 1500 9000; do
        ip -n "$namespace" link add vmhost mtu "$mtu" type veth peer name iohost mtu "$mtu"
        ip -n "$namespace" link set vmhost up
        ip -n "$namespace" link set iohost up
        run_command "ethernet/$mtu" env SIDECORE_BIN="$SIDECORE" REMOTE_INTERFACES=vmhost,iohost \
            ip netns exec "$namespace" cargo test --profile driver -p tests --test remote -- --nocapture --ignored ethernet || true
        sed -n 's/^\(test [^ ]* \.\.\. \)\{0,1\}\(remote: .*\)/\2/p' "$BUILD/test/$GROUP-ethernet-$mtu.log" >&2
        ip -n "$namespace" link del vmhost
    done
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
