# shellcheck shell=bash
# ./x demo: one daemon, two disks, two guests that work at the same time; in the middle of it the
# daemon is killed with -9 and started again, and neither guest notices. Sourced by ./x.
#
# Both disks are files, one of them in memory: a RAM disk (`backend = "memory"`) ends with its daemon.

# Where files in memory are.
DEMO_MEMORY=/dev/shm

cmd_demo() {
    need_guests
    need_guest_image
    need_sidecore
    local folder memory
    folder=$(mktemp -d "${TMPDIR:-/tmp}/sidecore.XXXXXX")
    memory=$(mktemp -d "$DEMO_MEMORY/sidecore.XXXXXX")
    OUTCOMES=$folder/outcomes
    : >"$OUTCOMES"
    # shellcheck disable=SC2064  # the folders as they are now
    trap "end_own; rm -rf '$folder' '$memory'" EXIT
    X_STARTED=$SECONDS

    server_begin "$folder"
    server_disk vm1-root file 256M queues=2 "image=$memory/vm1-root.img"
    server_disk vm2-root file 256M queues=2
    say 'starting the daemon: vm1-root is a file in memory, vm2-root one on disk'
    server_start
    say "booting two guests, each with a disk of it ($(accelerator | cut -d, -f1))"
    GUEST_WORDS=(arg.size=48m)
    guest_start vm1 together vm1-root
    guest_start vm2 together vm2-root
    local good=yes
    both_at_once vm1 vm2 90 || good=
    [[ -z $good ]] || say 'both have made ext4 on it and run fio --verify, now at the same time'
    [[ -z $good ]] || kill_in_the_middle vm1 vm1-root vm2 vm2-root || good=
    GUEST_PREFIX='vm1 ' guest_end vm1 150 || good=
    GUEST_PREFIX='vm2 ' guest_end vm2 150 || good=
    say 'both guests are off'
    show_checks
    say 'what the second daemon has counted:'
    counters_table vm1-root vm2-root
    server_stop || good=
    if [[ -z $good ]] || grep -q '^fail' "$OUTCOMES"; then
        die 'the demo found something wrong' 'read what FAIL says above; ./x test guest looks closer'
    fi
    say "${green}done${plain}: fio --verify passed in both guests; neither has noticed the kill -9"
}

# kill_in_the_middle GUEST DISK GUEST DISK: the daemon goes at some instant of both guests' load, and
# another takes its place. QEMU looks for it once a second (reconnect=1).
kill_in_the_middle() {
    local pid=$SERVER_PID killed_ms listening_ms
    sleep "0.$((RANDOM % 9 + 1))"
    if guest_said "$1" '^RESULT fio-verify' || guest_said "$3" '^RESULT fio-verify'; then
        failed killed-in-the-middle 'a guest was done with fio before the daemon was killed'
        return 1
    fi
    killed_ms=$(now_ms)
    say "kill -9 $pid: the daemon is gone at $(date +%T.%3N)"
    server_kill
    until sidecore_do ls >/dev/null 2>&1; do
        if ! alive "$SERVER_PID" || (($(now_ms) - killed_ms > 10000)); then
            failed serves-again 'the second daemon does not answer'
            return 1
        fi
    done
    listening_ms=$(($(now_ms) - killed_ms))
    if ! server_served "$2" 10 || ! server_served "$4" 10; then
        failed serves-again 'the second daemon has served nothing for 10 s'
        return 1
    fi
    say "pid $SERVER_PID listens after $listening_ms ms, and serves both guests after $((
        $(now_ms) - killed_ms)) ms (QEMU looks once a second)"
    passed 'killed -9 and back, both served'
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
