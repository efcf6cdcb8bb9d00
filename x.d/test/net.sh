# shellcheck shell=bash
# GROUP: NICs: guests on switches, VLANs, host ports in namespaces, DPDK's driver (root)
# Guests do what guest_do says (tests/guest/scripts/orders.sh). Run by x.d/test.sh.
# shellcheck disable=SC2034  # variables here are read by x.d/guest.sh and x.d/server.sh

group_net() {
    need_guests
    need_guest_image
    [[ $GUEST_SERVER == sidecore ]] || say "NICs are served by $GUEST_SERVER (GUEST_SERVER)"
    [[ $GUEST_SERVER != sidecore ]] || need_sidecore
    run_cases case_guests
}

# two_guests: `one` and `two` boot and take orders. GUEST_ONE and GUEST_TWO are their NICs; in the
# network K of their NIC ethK they are 10.9.K.1 and 10.9.K.2, fd09:K::1 and fd09:K::2.
two_guests() {
    GUEST_SMP=2
    GUEST_NICS=("${GUEST_ONE[@]}")
    guest_start one orders
    GUEST_NICS=("${GUEST_TWO[@]}")
    guest_start two orders
    guest_ready one orders
    guest_ready two orders
    addresses one 1 "${#GUEST_ONE[@]}"
    addresses two 2 "${#GUEST_TWO[@]}"
}

# addresses GUEST NUMBER NICS
addresses() {
    local nic words=''
    for ((nic = 0; nic < $3; nic++)); do
        words+="ip link set eth$nic up; ip addr add 10.9.$nic.$2/24 dev eth$nic; "
        words+="ip addr add fd09:$nic::$2/64 dev eth$nic nodad; "
    done
    words+='iperf3 -s -D; true'
    guest_do "$1" "$words"
}

# ask NAME GUEST COMMAND: one outcome; its last words where it failed.
ask() {
    local name=$1 said
    shift
    if said=$(guest_do "$@"); then
        passed "$name"
    else
        failed "$name" "\`${*:2}\` in $1: $(tail -n 3 <<<"$said" | tr '\n' ' ')"
    fi
}

# asked_in_vain NAME GUEST COMMAND: the command has to fail, and not for want of an answer.
asked_in_vain() {
    local name=$1 status=0 said
    shift
    said=$(guest_do "$@") || status=$?
    case $status in
        1) passed "$name" ;;
        *) failed "$name" "\`${*:2}\` in $1 gave status $status: $(tail -n 3 <<<"$said" | tr '\n' ' ')" ;;
    esac
}

# tcp NAME GUEST IPERF-ARGUMENTS...: two seconds of TCP, and what was received, in Mbit/s.
tcp() {
    local name=$1 guest=$2 said rate
    shift 2
    said=$(guest_do "$guest" "iperf3 -J -i 0 -t 2 -c $*") || true
    rate=$(jq '.end.sum_received.bits_per_second / 1e6 | floor' <<<"$said" 2>/dev/null) || rate=
    if ((${rate:-0} > 0)); then
        passed "$name" "$rate Mbit/s"
    else
        failed "$name" "iperf3 -c $* in $guest: $(jq -r .error <<<"$said" 2>/dev/null || tail -n 2 <<<"$said")"
    fi
}

# udp NAME GUEST IPERF-ARGUMENTS...: nearly all of it arrives, in a rate that guests can take.
udp() {
    local name=$1 guest=$2 said
    shift 2
    said=$(guest_do "$guest" "iperf3 -J -i 0 -t 2 -u -b 20M -c $*") || true
    said=$(jq -r '.end.sum | "\(.packets) \(.lost_percent)"' <<<"$said" 2>/dev/null) || said=
    if awk '{ exit !($1 > 100 && $2 < 5) }' <<<"$said"; then
        passed "$name" "$said % lost"
    else
        failed "$name" "iperf3 -u -c $* in $guest: packets and percent lost are: $said"
    fi
}

# same_bytes NAME FROM TO ADDRESS: 8 MiB of noise by TCP, compared by checksum.
same_bytes() {
    local name=$1 sent got
    # A listener whose own input ends would say so, and the sender would stop.
    guest_do "$3" 'rm -f /tmp/got; tail -f /dev/null | nc -l -p 6000 >/tmp/got &' || true
    sent=$(guest_do "$2" "[ -s /tmp/noise ] || head -c 8388608 /dev/urandom >/tmp/noise
        nc $4 6000 </tmp/noise >/dev/null; cksum </tmp/noise") || true
    got=$(guest_do "$3" 'cksum </tmp/got') || true
    if [[ -n $sent && $sent == "$got" ]]; then
        passed "$name"
    else
        failed "$name" "$2 sent $sent, $3 got $got"
    fi
}

# Four networks in one boot: plain; one end without offloads and mergeable buffers; several queue
# pairs, packed, MTU 9000; a trunk against two access ports.
case_guests() {
    only_root || return 0
    net_inside
    server_switch lan
    server_nic one-lan switch=lan
    server_nic two-lan switch=lan
    server_switch bare
    server_nic one-bare switch=bare
    server_nic two-bare switch=bare
    server_switch wide
    server_nic one-wide switch=wide queues=2 mtu=9000
    server_nic two-wide switch=wide queues=2 mtu=9000
    server_switch vlans
    server_nic one-trunk switch=vlans 'trunk=[10, 20]'
    server_nic two-ten switch=vlans vlan=10
    server_nic two-twenty switch=vlans vlan=20
    server_start
    local none=guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,mrg_rxbuf=off
    GUEST_ONE=(one-lan one-bare one-wide,packed=on one-trunk)
    GUEST_TWO=(two-lan "two-bare,$none" two-wide,packed=on two-ten two-twenty)
    two_guests
    plain_network
    without_offloads
    wide_network
    vlan_network
    carrier
    guest_over one
    guest_over two
}

plain_network() {
    ask ping one 'ping -q -c 20 -i 0.05 -W 1 10.9.0.2'
    ask ping-v6 one 'ping -q -c 5 -i 0.2 -W 1 fd09:0::2'
    ask ping-fragments one 'ping -q -c 5 -i 0.2 -s 20000 10.9.0.2'
    tcp tcp-one-to-two one 10.9.0.2
    tcp tcp-two-to-one one 10.9.0.2 -R
    tcp tcp-v6 one fd09:0::2
    udp udp-one-to-two one 10.9.0.2
    udp udp-two-to-one one 10.9.0.2 -R
    same_bytes bytes-one-to-two one two 10.9.0.2
    same_bytes bytes-two-to-one two one 10.9.0.1
    guest_do two 'memcached -u root -m 64 -d
        sockperf server -i 10.9.0.2 --tcp -p 7000 >/dev/null 2>&1 &
        sockperf server -i 10.9.0.2 -p 7001 >/dev/null 2>&1 &' || true
    memcached_load set cmd_set
    memcached_load get get_hits
    request_response tcp-rr --tcp -p 7000
    request_response udp-rr -p 7001
}

# memcached_load TEST COUNTER: eight thousand requests of four clients, and as many in the server's
# own counter (memcslap itself is content without a server).
memcached_load() {
    local said
    said=$(guest_do one "memcslap --servers=10.9.0.2 --concurrency=4 --execute-number=2000 --test=$1
        printf 'stats\\nquit\\n' | nc 10.9.0.2 11211") || true
    said=$(awk -v counter="$2" '$2 == counter { print int($3) }' <<<"$said")
    if ((${said:-0} >= 8000)); then
        passed "memcached-$1" "$said served"
    else
        failed "memcached-$1" "the server counted ${said:-nothing}"
    fi
}

# request_response NAME SOCKPERF-ARGUMENTS...: one request and its answer after the other.
request_response() {
    local name=$1 said
    shift
    said=$(guest_do one "sockperf ping-pong -i 10.9.0.2 -t 2 $*") || true
    if grep -q 'Summary: Latency is' <<<"$said"; then
        passed "$name" "$(sed -n 's/.*Summary: Latency is \(.*\)/one way \1/p' <<<"$said" | head -n 1)"
    else
        failed "$name" "$(tail -n 3 <<<"$said" | tr '\n' ' ')"
    fi
}

# Two takes neither segments nor checksums, in single buffers; one sends them, and then does not.
without_offloads() {
    ask bare-ping one 'ping -q -c 10 -i 0.05 -W 1 10.9.1.2'
    tcp bare-tcp one 10.9.1.2
    tcp bare-tcp-back one 10.9.1.2 -R
    tcp bare-tcp-v6 one fd09:1::2
    same_bytes bare-bytes one two 10.9.1.2
    same_bytes bare-bytes-back two one 10.9.1.1
    ask offloads-off one 'ethtool -K eth1 tx off sg off tso off gso off rx off gro off'
    tcp offloads-off-tcp one 10.9.1.2
    same_bytes offloads-off-bytes one two 10.9.1.2
    ask offloads-on one 'ethtool -K eth1 tx on sg on tso on gso on rx on gro on'
    same_bytes offloads-on-bytes one two 10.9.1.2
}

wide_network() {
    ask mtu-9000 one "grep -qx 9000 /sys/class/net/eth2/mtu"
    ask ping-9000 one 'ping -q -c 5 -i 0.2 -M do -s 8972 10.9.2.2'
    ask two-pairs one 'ethtool -L eth2 combined 2 && [ -d /sys/class/net/eth2/queues/rx-1 ]'
    ask two-pairs-there two 'ethtool -L eth2 combined 2'
    tcp wide-tcp one 10.9.2.2 -P 4
    tcp wide-tcp-back one 10.9.2.2 -P 4 -R
    same_bytes wide-bytes one two 10.9.2.2
    ask one-pair-again one 'ethtool -L eth2 combined 1'
    tcp one-pair-tcp one 10.9.2.2 -P 2
    same_bytes one-pair-bytes one two 10.9.2.2
}

vlan_network() {
    if [[ $GUEST_SERVER == linux ]]; then
        skipped vlans 'a Linux bridge has them only with some kernels'
        return 0
    fi
    guest_do one 'ip addr flush dev eth3
        for vlan in 10 20; do
            ip link add link eth3 name eth3.$vlan type vlan id $vlan
            ip link set eth3.$vlan up
        done
        ip addr add 10.9.3.1/24 dev eth3.10; ip addr add 10.9.4.1/24 dev eth3.20' || true
    ask vlan-10 one 'ping -q -c 5 -i 0.1 -W 1 10.9.3.2'
    ask vlan-20 one 'ping -q -c 5 -i 0.1 -W 1 10.9.4.2'
    tcp vlan-tcp one 10.9.3.2
    tcp vlan-tcp-back one 10.9.4.2 -R
    same_bytes vlan-bytes one two 10.9.4.2
    # What is two's in VLAN 10 does not answer in VLAN 20.
    guest_do one 'ip addr flush dev eth3.20; ip addr flush dev eth3.10; ip addr add 10.9.3.1/24 dev eth3.20' || true
    asked_in_vain vlans-are-apart one 'ping -q -c 3 -i 0.2 -W 1 10.9.3.2'
}

# The operator takes a link away and gives it back.
carrier() {
    if [[ $GUEST_SERVER != sidecore ]]; then
        skipped carrier "$GUEST_SERVER has no command for it"
        return 0
    fi
    sidecore_do nic link two-lan down >"$SERVER_DIR/link" 2>&1 || true
    ask carrier-lost two 'n=0; until [ "$(cat /sys/class/net/eth0/carrier)" = 0 ]; do
        n=$((n + 1)); [ $n -lt 50 ] || exit 1; sleep 0.1; done'
    asked_in_vain nothing-passes one 'ping -q -c 2 -i 0.2 -W 1 10.9.0.2'
    sidecore_do nic link two-lan up >>"$SERVER_DIR/link" 2>&1 || true
    ask carrier-back two 'n=0; until [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; do
        n=$((n + 1)); [ $n -lt 50 ] || exit 1; sleep 0.1; done'
    ask ping-after one 'ping -q -c 5 -i 0.2 -W 1 10.9.0.2'
}
