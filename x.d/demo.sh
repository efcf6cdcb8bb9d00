# shellcheck shell=bash
# ./x demo: one daemon, two disks, one switch, two guests that work at the same time; in the middle of
# it the daemon is killed with -9 and started again, and neither guest notices: fio --verify finds
# what it wrote, and TCP connections between the guests and with the host go on. `./x demo remote` is
# demo_remote.sh's. Sourced by ./x.
#
# Both disks are files, one of them in memory: a RAM disk (`backend = "memory"`) ends with its daemon.
# The host of the demo is a network namespace, so that nothing of the real one is touched; without
# root there is none, and the guests have only each other.

# Where files in memory are.
DEMO_MEMORY=/dev/shm
DEMO_HOST=10.9.0.100 DEMO_VM1=10.9.0.1 DEMO_VM2=10.9.0.2

cmd_demo() {
    case ${1:-} in
        '') ;;
        remote) demo_remote; return ;;
        *) die "./x demo does not know '$1'" './x demo, or ./x demo remote' ;;
    esac
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

    demo_world "$folder" "$memory"
    local good=yes
    demo_load || good=
    GUEST_PREFIX='vm1 ' guest_over vm1 60 || good=
    GUEST_PREFIX='vm2 ' guest_over vm2 60 || good=
    say 'both guests are off'
    show_checks
    say 'what the second daemon has counted:'
    counters_table vm1-root vm2-root
    ports_table lan
    server_stop || good=
    if [[ -z $good ]] || grep -q '^fail' "$OUTCOMES"; then
        die 'the demo found something wrong' 'read what FAIL says above; ./x test guest net looks closer'
    fi
    say "${green}done${plain}: fio --verify passed in both guests, and their TCP connections live; nothing in them has noticed the kill -9"
    say './x demo remote: a guest whose disk is on another machine, which is killed as well'
}

# demo_world FOLDER MEMORY: the daemon, and both guests, ready to take orders.
demo_world() {
    server_begin "$1"
    ((EUID != 0)) || net_inside
    server_disk vm1-root file 256M queues=2 "image=$2/vm1-root.img"
    server_disk vm2-root file 256M queues=2
    server_switch lan
    [[ -z $NET_HOST ]] || server_uplink lan tap=lan0
    server_nic vm1-net switch=lan
    server_nic vm2-net switch=lan
    say 'starting the daemon: vm1-root is a file in memory, vm2-root one on disk; switch lan has both guests'
    server_start
    if [[ -n $NET_HOST ]]; then
        place_namespace host "$NET_HOST"
        ip -n "$NET_HOST" addr add "$DEMO_HOST/24" dev lan0
        place_do host 'iperf3 -s -D' >"$SERVER_DIR/iperf3"
        say "its uplink lan0 has $DEMO_HOST in a namespace that stands for the host"
    else
        say 'without root there is no uplink to a host'
    fi
    say "booting two guests, each with a disk and a NIC of it ($(accelerator | cut -d, -f1))"
    GUEST_NICS=(vm1-net)
    guest_start vm1 orders vm1-root
    GUEST_NICS=(vm2-net)
    guest_start vm2 orders vm2-root
    guest_ready vm1 orders
    guest_ready vm2 orders
    guest_do vm1 "ip addr add $DEMO_VM1/24 dev eth0; ip link set eth0 up"
    guest_do vm2 "ip addr add $DEMO_VM2/24 dev eth0; ip link set eth0 up; iperf3 -s -D"
}

# demo_load: the network alone, then network and disks while the daemon is killed.
demo_load() {
    local pings='ping -q -c 5 -i 0.1 -W 60'
    ask 'ping vm1 to vm2' vm1 "$pings $DEMO_VM2"
    tcp 'iperf3 vm1 to vm2' vm1 "$DEMO_VM2"
    tcp 'iperf3 vm2 to vm1' vm1 "$DEMO_VM2" -R
    if [[ -n $NET_HOST ]]; then
        ask 'ping vm2 to host' vm2 "$pings $DEMO_HOST"
        tcp 'iperf3 vm2 to host' vm2 "$DEMO_HOST"
        tcp 'iperf3 host to vm2' vm2 "$DEMO_HOST" -R
    fi
    awk -F'\t' '/iperf3/ { print "      " $2 ": " $3 }' "$OUTCOMES" >&2
    streams_start vm1 vm2 "$DEMO_VM1" "$DEMO_VM2" "$DEMO_HOST"
    LOAD_RATE=20M load_start vm1 "$DEMO_VM2" 120
    local disks='arg_size=40m sh /scripts/together.sh >/tmp/together 2>&1; touch /tmp/together-over'
    guest_do vm1 "{ $disks; } &" >/dev/null
    guest_do vm2 "{ $disks; } &" >/dev/null
    both_at_once vm1 vm2 90 || return 1
    say 'both have made ext4 on it and run fio --verify, now at the same time; TCP goes both ways'
    kill_in_the_middle vm1 vm1-root vm2 vm2-root || return 1
    streams_go_on 'TCP connections live on' vm1 vm2 20
    load_end 'iperf3 both ways lives on' vm1
    local DO_SECONDS=100
    ask 'vm1 is done' vm1 "$(await_for 90 '[ -e /tmp/together-over ]')"
    ask 'vm2 is done' vm2 "$(await_for 90 '[ -e /tmp/together-over ]')"
    streams_end vm1 vm2
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
        if ! alive "$SERVER_PID" || (($(now_ms) - killed_ms > 60000)); then
            failed serves-again 'the second daemon does not answer'
            return 1
        fi
    done
    listening_ms=$(($(now_ms) - killed_ms))
    if ! server_served "$2" 10 || ! server_served "$4" 10; then
        failed serves-again 'the second daemon has served nothing for a minute'
        return 1
    fi
    say "pid $SERVER_PID listens after $listening_ms ms, and serves both guests after $((
        $(now_ms) - killed_ms)) ms (QEMU looks once a second)"
    passed 'killed -9 and back, both served'
}

show_checks() {
    printf '\n'
    awk -F'\t' '{ printf "  %-4s  %-40s %s\n", $1 == "pass" ? "ok" : $1, $2, $3 }' "$OUTCOMES"
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
}

# ports_table SWITCH: what it counted, a line a port, and the addresses that it knows there.
ports_table() {
    printf '\n%-10s %9s %9s %9s %9s %8s %8s  %s\n' port 'in' MiB out MiB dropped slow addresses
    sidecore_do switch show "$1" --json | jq -r '
        (.macs // []) as $macs | .ports[] | .name as $name | .counters |
        [$name, .taken_frames, .taken_bytes / 1048576, .delivered_frames, .delivered_bytes / 1048576,
        .dropped_frames, .slow_frames, ([$macs[] | select(.port == $name) | .mac] | join(" "))] | @tsv' |
        awk -F'\t' '{ printf "%-10s %9d %9.1f %9d %9.1f %8d %8d  %s\n", $1, $2, $3, $4, $5, $6, $7, $8 }'
    printf '\n'
}
