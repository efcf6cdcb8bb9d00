# shellcheck shell=bash
# ./x demo remote: a guest whose disk and NIC another machine has. Machines are network namespaces: a VM host, and two IOhosts with one
# image. In the middle of fio --verify the first IOhost's daemon is killed with -9 and started again, then killed for good, and the
# second one, which stood by, takes over; the guest only waits. iperf3 runs in the guest before, between and after, to a
# network that the IOhosts' switches are on. What it does is in remote.sh. Sourced by ./x.

demo_remote() {
    ((EUID == 0)) || die 'the machines of ./x demo remote are network namespaces, which need root' 'sudo ./x demo remote'
    [[ $GUEST_SERVER == sidecore ]] || die "$GUEST_SERVER has no disks of other machines" 'leave GUEST_SERVER out'
    need_guests
    need_guest_image
    need_sidecore
    local folder good=yes
    folder=$(mktemp -d "${TMPDIR:-/tmp}/sidecore.XXXXXX")
    OUTCOMES=$folder/outcomes
    : >"$OUTCOMES"
    # shellcheck disable=SC2064  # the folder as it is now
    trap "end_own; rm -rf '$folder'" EXIT
    X_STARTED=$SECONDS
    server_begin "$folder"
    remote_world
    remote_load || good=
    GUEST_PREFIX='vm1 ' remote_end || good=
    show_checks
    if [[ -z $good ]] || grep -q '^fail' "$OUTCOMES"; then
        die 'FAILED: the guest has noticed, or its image is not whole' 'read what FAIL says above; ./x test remote looks closer'
    fi
    say "${green}passed${plain}: fio --verify and e2fsck found every byte; the guest has waited for IOhosts that died, and noticed nothing else"
    say 'all of it was one machine; what two do to a guest that had writes not flushed: docs/remote.md'
}
