# shellcheck shell=bash
# ./x demo: one daemon, two disks (one in memory, one a file), two guests that work at the same
# time, and the daemon's own numbers. Sourced by ./x.

cmd_demo() {
    need_guests
    need_guest_image
    need_sidecore
    local folder
    folder=$(mktemp -d "${TMPDIR:-/tmp}/sidecore.XXXXXX")
    OUTCOMES=$folder/outcomes
    : >"$OUTCOMES"
    # shellcheck disable=SC2064  # the folder as it is now
    trap "end_own; rm -rf '$folder'" EXIT
    X_STARTED=$SECONDS

    server_begin "$folder"
    server_disk vm1-root memory 256M queues=2
    server_disk vm2-root file 256M queues=2
    say 'starting the daemon: vm1-root in memory, vm2-root in a file'
    server_start
    say "booting two guests, each with a disk of it ($(accelerator | cut -d, -f1))"
    GUEST_WORDS=(arg.size=48m)
    guest_start vm1 together vm1-root
    guest_start vm2 together vm2-root
    local good=yes
    both_at_once vm1 vm2 90 || good=
    [[ -z $good ]] || say 'both have made ext4 on it and run fio --verify, now at the same time'
    GUEST_PREFIX='vm1 ' guest_end vm1 150 || good=
    GUEST_PREFIX='vm2 ' guest_end vm2 150 || good=
    say 'both guests are off'
    show_checks
    counters_table vm1-root vm2-root
    server_stop || good=
    if [[ -z $good ]] || grep -q '^fail' "$OUTCOMES"; then
        die 'the demo found something wrong' 'read what FAIL says above; ./x test guest looks closer'
    fi
    say "${green}done${plain}: fio --verify passed in both guests at once"
}

show_checks() {
    printf '\n'
    awk -F'\t' '{ printf "  %-4s  %s\n", $1 == "pass" ? "ok" : $1, $2 }' "$OUTCOMES"
}

# counters_table ID...: what the daemon counted, a line a queue.
counters_table() {
    local id
    printf '\n%-10s %5s %9s %8s %8s %8s %9s %8s %8s %9s %9s\n' disk queue requests reads writes \
        flushes MiB kicks calls p50_us p99_us
    for id; do
        sidecore_do show "$id" --json | jq -r --arg id "$id" '
            .queues[] | .counters as $c | [$id, .index, $c.requests, $c.reads, $c.writes, $c.flushes,
            (($c.read_bytes + $c.written_bytes) / 1048576 | floor), $c.kicks, $c.calls,
            $c.latency_p50_ns / 1000, $c.latency_p99_ns / 1000] | @tsv' |
            awk -F'\t' '{ printf "%-10s %5d %9d %8d %8d %8d %9d %8d %8d %9.1f %9.1f\n",
                $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11 }'
    done
    printf '\n'
}
