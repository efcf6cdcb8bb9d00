# shellcheck shell=bash
# ./x bench tap: a real guest's NIC on a tap, served by Sidecore and by QEMU itself (user-space
# virtio-net), in one run: iperf3 with a namespace behind the tap, TCP both ways and UDP both ways.
# Both guests run all the time, and rounds take turns, so that what the machine does meanwhile meets
# both. Sourced by ./x.
#
# Rows: tap.{tcp,udp}.{out,in}.mbps, `out` is what the guest sends. UDP is what arrived.

# The guests: name, and who serves its NIC. Each has a network of its own, 10.9.N.0/24.
BENCH_TAP_GUESTS=(sidecore qemu)

bench_tap() {
    local rounds=5 seconds=4 json='' word folder
    for word; do
        case $word in
            --quick) seconds=2 ;;
            --json) json=yes ;;
            *) die "./x bench tap does not know $word" './x bench tap [--quick] [--json]' ;;
        esac
    done
    ((EUID == 0)) || die './x bench tap makes a namespace and taps, which needs root' 'sudo ./x bench tap'
    need_guests
    need_guest_image
    need_sidecore
    folder=$(mktemp -d "${TMPDIR:-/tmp}/sidecore.XXXXXX")
    # shellcheck disable=SC2064  # the folder as it is now
    trap "end_own; rm -rf '$folder'" EXIT
    OUTCOMES=$folder/outcomes
    : >"$OUTCOMES"
    bench_tap_world "$folder"
    local round who
    : >"$folder/rows"
    for ((round = 1; round <= rounds; round++)); do
        for who in "${BENCH_TAP_GUESTS[@]}"; do
            bench_tap_row "$who" tcp.out ''
            bench_tap_row "$who" tcp.in -R
            bench_tap_row "$who" udp.out '-u -b 0 -l 1448'
            bench_tap_row "$who" udp.in '-u -b 0 -l 1448 -R'
        done
        say "round $round of $rounds"
    done
    server_stop
    bench_tap_tell "$json" <"$folder/rows"
}

# bench_tap_world FOLDER: a guest of each, with an address on each tap.
bench_tap_world() {
    local who number=0 queue_settings=()
    server_begin "$1"
    net_inside
    place_namespace host "$NET_HOST"
    NET_SERVER=sidecore server_nic sidecore tap=tapsidecore
    NET_SERVER=linux server_nic qemu tap=tapqemu
    server_start
    for who in "${BENCH_TAP_GUESTS[@]}"; do
        ip -n "$NET_HOST" link set "tap$who" up
        ip -n "$NET_HOST" addr add "10.9.$number.100/24" dev "tap$who"
        mapfile -t queue_settings < <(in_namespace "$NET_HOST" cat "/sys/class/net/tap$who"/{mtu,tx_queue_len})
        say "tap$who: mtu ${queue_settings[0]}, queue ${queue_settings[1]}"
        GUEST_NICS=("$who")
        GUEST_INSIDE=()
        [[ $who != qemu ]] || GUEST_INSIDE=("${NET_INSIDE[@]}")
        case $who in
            qemu) NET_SERVER=linux guest_start "$who" orders ;;
            *) NET_SERVER=sidecore guest_start "$who" orders ;;
        esac
        number=$((number + 1))
    done
    place_do host 'iperf3 -s -D; iperf3 -s -D -p 5202' >"$SERVER_DIR/iperf3"
    number=0
    for who in "${BENCH_TAP_GUESTS[@]}"; do
        guest_ready "$who" orders
        guest_do "$who" "ip link set eth0 up; ip addr add 10.9.$number.1/24 dev eth0; ping -q -c 1 -W 5 10.9.$number.100 >/dev/null" ||
            die "the guest on $who reaches nobody" 'read what FAIL says above'
        number=$((number + 1))
    done
}

# bench_tap_row WHO WHAT IPERF-ARGUMENTS: one line in the rows' file.
bench_tap_row() {
    local who=$1 number=0 said rate
    [[ $who == sidecore ]] || number=1
    # A receiver's rate; of UDP iperf3 says it in `sum` with what was lost.
    # shellcheck disable=SC2154  # of bench_tap
    said=$(guest_do "$who" "iperf3 -J -i 0 -t $seconds -c 10.9.$number.100 $3") || true
    rate=$(jq '.end | if .sum_received.bits_per_second then
            .sum_received.bits_per_second else .sum.bits_per_second * (100 - .sum.lost_percent) / 100 end
            | . / 1e6 | floor' <<<"$said" 2>/dev/null) || rate=
    [[ -n $rate ]] || die "iperf3 failed on $who ($2): $(jq -r .error <<<"$said" 2>/dev/null || short "$said")"
    printf '%s %s %s\n' "$2" "$who" "$rate" >>"$folder/rows"
}

# bench_tap_tell JSON: medians with the least and greatest, as the other benches say them.
bench_tap_tell() {
    sort -k1,1 -k2,2 -k3,3n | awk -v json="$1" '
        { rows[$1 " " $2] = rows[$1 " " $2] " " $3 }
        function look(list,    values, count) {
            count = split(list, values, " ")
            low = values[1]; high = values[count]
            middle = (values[int((count + 1) / 2)] + values[int(count / 2) + 1]) / 2
        }
        function row(name, who) {
            look(rows[name " " who])
            if (json)
                printf "{\"name\":\"tap.%s.mbps\",\"who\":\"%s\",\"value\":%s,\"unit\":\"Mbit/s\",\"spread\":[%s,%s]}\n", name, who, middle, low, high
            else
                printf "%-18s %-9s %7d  Mbit/s %7d %7d", "tap." name ".mbps", who, middle, low, high
            return middle
        }
        END {
            if (!json)
                printf "%-18s %-9s %7s  %-6s %7s %7s %7s\n", "name", "who", "value", "unit", "min", "max", "ratio"
            count = split("tcp.out tcp.in udp.out udp.in", order, " ")
            for (i = 1; i <= count; i++) {
                ours = row(order[i], "sidecore")
                look(rows[order[i] " qemu"])
                if (!json) printf "  %6.2f\n", middle ? ours / middle : 0
                row(order[i], "qemu")
                if (!json) printf "\n"
            }
        }'
}
