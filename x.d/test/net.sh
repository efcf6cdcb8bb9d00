# shellcheck shell=bash
# GROUP: NICs: guests on switches, VLANs, host ports in namespaces, DPDK's driver (root)
# Guests do what guest_do says (tests/guest/scripts/orders.sh). Run by x.d/test.sh.
# shellcheck disable=SC2034  # variables here are read by x.d/guest.sh and x.d/server.sh

group_net() {
    need_guests
    need_guest_image
    [[ $NET_SERVER == sidecore ]] || say "NICs are served by $NET_SERVER (GUEST_SERVER)"
    [[ $NET_SERVER != sidecore ]] || need_sidecore
    run_cases case_guests case_host_ports case_killed case_drivers case_pasted_nic case_tunnels
    need_testpmd
    run_cases case_testpmd case_testpmd_pair
}

# one_guest NIC...: `one` boots and takes orders.
one_guest() {
    GUEST_NICS=("$@")
    guest_start one orders
    guest_ready one orders
    addresses one 1 "$#"
}

# two_guests: `one` and `two` boot and take orders. GUEST_ONE and GUEST_TWO are their NICs; in the
# network K of their NIC ethK they are 10.9.K.1 and 10.9.K.2, fd09:K::1 and fd09:K::2.
two_guests() {
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
    GUEST_ONE=(one-lan one-bare 'one-wide,packed=on' one-trunk)
    GUEST_TWO=(two-lan "two-bare,$none" 'two-wide,packed=on' two-ten two-twenty)
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
    ask ping one 'ping -q -c 20 -i 0.05 -W 60 10.9.0.2'
    ask ping-v6 one 'ping -q -c 5 -i 0.2 -W 60 fd09:0::2'
    ask ping-fragments one 'ping -q -c 5 -i 0.2 -W 60 -s 20000 10.9.0.2'
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

# memcached_load TEST COUNTER: four thousand requests of four clients, and as many in the server's
# own counter (memcslap itself is content without a server).
memcached_load() {
    local said
    said=$(guest_do one "memcslap --servers=10.9.0.2 --concurrency=4 --execute-number=1000 --initial-load=1000 --test=$1
        printf 'stats\\nquit\\n' | nc 10.9.0.2 11211") || true
    said=$(awk -v counter="$2" '$2 == counter { print int($3) }' <<<"$said")
    if ((${said:-0} > 3900)); then
        passed "memcached-$1" "$said served"
    else
        failed "memcached-$1" "the server counted ${said:-nothing}"
    fi
}

# request_response NAME SOCKPERF-ARGUMENTS...: one request and its answer after the other.
request_response() {
    local name=$1 said
    shift
    said=$(guest_do one "sockperf ping-pong -i 10.9.0.2 -t 1 $*") || true
    if grep -q 'Summary: Latency is' <<<"$said"; then
        passed "$name" "$(sed -n 's/.*Summary: Latency is \(.*\)/one way \1/p' <<<"$said" | head -n 1)"
    else
        failed "$name" "$(tail -n 3 <<<"$said" | tr '\n' ' ')"
    fi
}

# Two takes neither segments nor checksums, in single buffers; one sends them, and then does not.
without_offloads() {
    ask bare-ping one 'ping -q -c 10 -i 0.05 -W 60 10.9.1.2'
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
    if [[ $NET_SERVER == linux ]]; then
        skipped vlans 'a Linux bridge has them only with some kernels'
        return 0
    fi
    guest_do one 'ip addr flush dev eth3
        ip link add link eth3 name eth3.10 type vlan id 10; ip link set eth3.10 up
        ip link add link eth3 name eth3.20 type vlan id 20; ip link set eth3.20 up
        ip addr add 10.9.3.1/24 dev eth3.10; ip addr add 10.9.4.1/24 dev eth3.20' || true
    ask vlan-10 one 'ping -q -c 5 -i 0.1 -W 60 10.9.3.2'
    ask vlan-20 one 'ping -q -c 5 -i 0.1 -W 60 10.9.4.2'
    tcp vlan-tcp one 10.9.3.2
    tcp vlan-tcp-back one 10.9.4.2 -R
    same_bytes vlan-bytes one two 10.9.4.2
    # What is two's in VLAN 10 does not answer in VLAN 20.
    guest_do one 'ip addr flush dev eth3.20; ip addr flush dev eth3.10; ip addr add 10.9.3.1/24 dev eth3.20' || true
    asked_in_vain vlans-are-apart one 'ping -q -c 3 -i 0.2 -W 1 10.9.3.2'
}

# The operator takes a link away and gives it back.
carrier() {
    if [[ $NET_SERVER != sidecore ]]; then
        skipped carrier "$NET_SERVER has no command for it"
        return 0
    fi
    sidecore_do nic link two-lan down >"$SERVER_DIR/link" 2>&1 || true
    ask carrier-lost two "$(await_for 5 'grep -qx 0 /sys/class/net/eth0/carrier')"
    asked_in_vain nothing-passes one 'ping -q -c 2 -i 0.2 -W 1 10.9.0.2'
    sidecore_do nic link two-lan up >>"$SERVER_DIR/link" 2>&1 || true
    ask carrier-back two "$(await_for 5 'grep -qx 1 /sys/class/net/eth0/carrier')"
    ask ping-after one 'ping -q -c 5 -i 0.2 -W 60 10.9.0.2'
}

# outside_world: a namespace that is reached through the host ports of NET_HOST.
outside_world() {
    local outside
    outside=$(namespace_name outside)
    own_namespace "$outside"
    place_namespace host "$NET_HOST"
    place_namespace outside "$outside"
}

# outside_address INTERFACE NUMBER: it is 10.9.NUMBER.100, and is up.
outside_address() {
    ip -n "${PLACES[outside]}" addr add "10.9.$2.100/24" dev "$1"
    ip -n "${PLACES[outside]}" addr add "fd09:$2::100/64" dev "$1" nodad
}

# Each way in which a NIC reaches the host's network, in one boot: a switch with a tap that is in a
# Linux bridge, a tap of its own with two queues, an interface's packet socket, and its AF_XDP socket.
case_host_ports() {
    only_root || return 0
    net_inside
    outside_world
    net_pair up0 out0 "${PLACES[outside]}"
    net_pair up1 out1 "${PLACES[outside]}"
    net_pair up2 out2 "${PLACES[outside]}"
    net_pair up3 out3 "${PLACES[outside]}"
    # AF_XDP carries frames as they are: who sends without checksums there is not understood.
    in_namespace "${PLACES[outside]}" ethtool -K out3 tx off >"$SERVER_DIR/ethtool"
    server_switch lan
    server_uplink lan tap=lan0
    server_nic one-lan switch=lan
    server_nic one-tap tap=own0 queues=2
    server_nic one-packet interface=up2 via=packet
    server_nic one-xdp interface=up3 via=xdp
    server_start
    # What the daemon has made is the operator's to use: in a bridge with the way out.
    bridge_of lan0 up0
    bridge_of own0 up1
    local port
    for port in 0 1 2 3; do outside_address "out$port" "$port"; done
    place_do outside 'iperf3 -s -D' >"$SERVER_DIR/iperf3"
    one_guest one-lan,guest_announce=off one-tap one-packet one-xdp
    reaches_outside uplink 0
    reaches_outside tap 1
    reaches_outside packet 2
    reaches_outside xdp 3
    announced
    guest_over one
}

# bridge_of ONE TWO: a Linux bridge of both, as they are.
bridge_of() {
    ip -n "$NET_HOST" link add "bridge-$1" type bridge mcast_snooping 0
    ip -n "$NET_HOST" link set "$1" up master "bridge-$1"
    ip -n "$NET_HOST" link set "$2" up master "bridge-$1"
    ip -n "$NET_HOST" link set "bridge-$1" up
}

# reaches_outside NAME NUMBER: network NUMBER, both ways.
reaches_outside() {
    local address=10.9.$2.100
    ask "$1-ping" one "ping -q -c 10 -i 0.05 -W 60 $address"
    ask "$1-ping-v6" one "ping -q -c 3 -i 0.2 -W 60 fd09:$2::100"
    ask "$1-ping-in" outside "ping -q -c 10 -i 0.05 -W 60 10.9.$2.1"
    tcp "$1-tcp-out" one "$address"
    tcp "$1-tcp-in" one "$address" -R
    udp "$1-udp-out" one "$address"
    udp "$1-udp-in" one "$address" -R
    same_bytes "$1-bytes-out" one outside "$address"
    same_bytes "$1-bytes-in" outside one "10.9.$2.1"
}

# After a migration a VMM says where its guest is now, for a guest that cannot say it itself. QEMU is told
# to say it without one.
announced() {
    local heard
    # The first frame with the type of RARP that arrives, in hexadecimal.
    # shellcheck disable=SC2016  # Perl's variables
    in_namespace "${PLACES[outside]}" timeout 90 perl -e '
        socket(my $socket, 17, 3, unpack("S", pack("n", 0x8035))) or die "no socket: $!";
        $| = 1;
        print "listening\n";
        recv($socket, my $frame, 2048, 0);
        print unpack("H*", $frame), "\n"' >"$SERVER_DIR/rarp" 2>&1 3>&- &
    heard=$!
    own "$heard"
    until grep -qs listening "$SERVER_DIR/rarp" || ! alive "$heard"; do sleep 0.05; done
    qmp one '{"execute":"announce-self","arguments":{"initial":50,"max":100,"rounds":3,"step":50}}' || true
    end_within 60 "$heard" || true
    disown_pid "$heard"
    if grep -q "^ffffffffffff$(nic_mac one-lan | tr -d :)8035" "$SERVER_DIR/rarp"; then
        passed announced
    else
        failed announced "in place of a RARP frame of $(nic_mac one-lan): $(tail -n 1 "$SERVER_DIR/rarp")"
    fi
}

# TCP connections between guests and with the host live on when the daemon is killed, again and again.
case_killed() {
    only_root || return 0
    if [[ $NET_SERVER != sidecore ]]; then
        skipped '' "$NET_SERVER is not killed"
        return 0
    fi
    net_inside
    place_namespace host "$NET_HOST"
    server_switch lan
    server_uplink lan tap=lan0
    server_nic one-lan switch=lan
    server_nic two-lan switch=lan
    server_start
    ip -n "$NET_HOST" addr add 10.9.0.100/24 dev lan0
    # Split rings: where a packed one was, only its old daemon knew (0006).
    GUEST_ONE=(one-lan)
    GUEST_TWO=(two-lan)
    two_guests
    streams_start one two 10.9.0.1 10.9.0.2 10.9.0.100
    load_start one 10.9.0.2 60
    local round
    for round in 1 2 3; do
        server_kill
        streams_go_on "kill-$round" one two 20
    done
    load_end load-lives one
    streams_end one two
    guest_over one
    guest_over two
}

# What drivers do to a NIC while it works: smaller rings, other numbers of pairs, offloads off and on, an
# XDP program; and DHCP by raw sockets. QEMU serves the control queue, and tells the daemon little of it.
case_drivers() {
    only_root || return 0
    if [[ $NET_SERVER != sidecore ]]; then
        skipped '' "$NET_SERVER is told what QEMU is told"
        return 0
    fi
    net_inside
    server_switch lan
    server_nic one-lan switch=lan queues=2
    server_nic two-lan switch=lan queues=2
    server_switch finished
    server_nic one-finished switch=finished queues=2 guest_offloads=false
    server_nic two-finished switch=finished
    server_start
    GUEST_ONE=('one-lan,ctrl_guest_offloads=off' 'one-finished,ctrl_guest_offloads=off')
    GUEST_TWO=(two-lan two-finished)
    two_guests
    ask no-ring-reset one '! grep -E "^.{40}1" /sys/bus/virtio/devices/*/features'
    load_start one 10.9.0.2 120
    ask ring-sizes-refused one '! ethtool -G eth0 rx 64 tx 64'
    ask ping-after-sizes one 'ping -q -c 10 -i 0.05 -W 60 10.9.0.2'
    pairs_change
    offloads_change
    load_end driver-load one
    xdp_attached
    dhcp_by_raw_sockets
    guest_over one
    guest_over two
}

pairs_change() {
    local pairs
    for pairs in 2 1 2; do
        ask "pairs-$pairs" one "ethtool -L eth0 combined $pairs && ping -q -c 5 -i 0.05 -W 60 10.9.0.2"
    done
}

# Each of a driver's own, off and on again; what it cannot change it says.
offloads_change() {
    local feature
    for feature in tx sg tso gso rx gro rx-gro-hw; do
        guest_do one "ethtool -K eth0 $feature off; ping -q -c 3 -i 0.05 -W 60 10.9.0.2 >/dev/null
            ethtool -K eth0 $feature on" >"$SERVER_DIR/features" 2>&1 || true
    done
    same_bytes features-bytes one two 10.9.0.2
    same_bytes features-bytes-back two one 10.9.0.1
}

# Where receive offloads are offered Linux refuses; where they are withheld it attaches, and TCP goes on.
xdp_attached() {
    asked_in_vain xdp-refused one 'xdp_pass eth0 </dev/null'
    same_bytes xdp-refused-bytes two one 10.9.0.1
    ask xdp-attached one "mkfifo /tmp/hold; xdp_pass eth1 <>/tmp/hold >/tmp/xdp 2>&1 &
        $(await_for 5 'grep -q attached /tmp/xdp')"
    tcp xdp-tcp one 10.9.1.2
    tcp xdp-tcp-back one 10.9.1.2 -R
    same_bytes xdp-bytes one two 10.9.1.2
    same_bytes xdp-bytes-back two one 10.9.1.1
}

# The server sends by a UDP socket, whose checksum its NIC may leave undone; the client reads by a raw one.
dhcp_by_raw_sockets() {
    guest_do two 'ethtool -K eth0 tx on; mkdir -p /var/lib/misc /var/run
        printf "start 10.9.0.50\nend 10.9.0.60\ninterface eth0\nlease_file /tmp/leases\npidfile /tmp/dhcp\n" >/tmp/udhcpd
        : >/tmp/leases; busybox udhcpd -f /tmp/udhcpd >/tmp/udhcpd-said 2>&1 &' || true
    ask dhcp one 'busybox udhcpc -i eth0 -n -q -f -t 30 -T 2 -s /bin/true >/tmp/udhcpc 2>&1
        cat /tmp/udhcpc; grep -q "lease of 10.9.0.5[0-9] obtained\|lease of 10.9.0.60 obtained" /tmp/udhcpc'
}

# The line that is printed here, pasted: a guest starts with it and reaches another.
case_pasted_nic() {
    only_root || return 0
    if [[ $NET_SERVER != sidecore ]]; then
        skipped '' "$NET_SERVER prints no arguments"
        return 0
    fi
    net_inside
    place_namespace host "$NET_HOST"
    server_switch lan
    server_uplink lan tap=lan0
    server_start
    ip -n "$NET_HOST" addr add 10.9.0.100/24 dev lan0
    GUEST_NICS=()
    GUEST_PASTED=$(sidecore_do nic add pasted --switch lan --queues 2 --memory 512M --print qemu 2>"$SERVER_DIR/add")
    if [[ $(accelerator) == kvm || $GUEST_PASTED == *vectors=0* ]]; then
        passed printed-for-this-host
    else
        failed printed-for-this-host "there is no KVM, and it prints: $GUEST_PASTED"
    fi
    guest_start one orders
    guest_ready one orders
    guest_do one 'ip link set eth0 up; ip addr add 10.9.0.1/24 dev eth0' || true
    ask ring-sizes one 'ethtool -g eth0 | grep -c "1024$" | grep -qx 4'
    ask two-pairs one 'ethtool -L eth0 combined 2'
    ask ping one 'ping -q -c 5 -i 0.1 -W 60 10.9.0.100'
    same_bytes bytes-in host one 10.9.0.1
    guest_over one
}

# Two namespaces, each behind a packet socket of one switch, and tunnels between them: what a kernel wraps and
# leaves uncut it labels with what is inside.
case_tunnels() {
    only_root || return 0
    if [[ $NET_SERVER != sidecore ]]; then
        skipped '' "$NET_SERVER has a kernel's own bridge"
        return 0
    fi
    net_inside
    local here there
    here=$(namespace_name here) there=$(namespace_name there)
    own_namespace "$here"
    own_namespace "$there"
    place_namespace here "$here"
    place_namespace there "$there"
    net_pair up0 out0 "$here"
    net_pair up1 out1 "$there"
    server_switch lan
    server_uplink lan interface=up0
    server_uplink lan interface=up1
    server_start
    ip -n "$here" addr add 10.8.0.1/24 dev out0
    ip -n "$there" addr add 10.8.0.2/24 dev out1
    ip -n "$here" addr add fd08::1/64 dev out0 nodad
    ip -n "$there" addr add fd08::2/64 dev out1 nodad
    ask underlay here 'ping -q -c 5 -i 0.1 -W 60 10.8.0.2'
    tunnel 1 vxlan 'vxlan id 5 dstport 4789' 10.8.0
    tunnel 2 vxlan-sums 'vxlan id 6 dstport 4790 udpcsum' 10.8.0
    tunnel 3 vxlan-v6 'vxlan id 7 dstport 4791' fd08:
    tunnel 4 geneve 'geneve id 8' 10.8.0
    tunnel 5 gretap 'gretap' 10.8.0
    tunnel 6 gre 'gre' 10.8.0
    tunnel 7 ipip 'ipip' 10.8.0
    tunnel 8 sit 'sit' 10.8.0
}

# tunnel NUMBER NAME KIND UNDERLAY: 10.10.NUMBER.1 and .2, and long segments through it both ways.
tunnel() {
    local number=$1 name=$2 kind=$3 underlay=$4 separator=. place own other from
    [[ $underlay != *: ]] || separator=:
    for place in here there; do
        own=1 other=2
        [[ $place == here ]] || own=2 other=1
        from=" local $underlay$separator$own"
        [[ $kind != geneve* ]] || from=
        # shellcheck disable=SC2086  # words of ip
        if ! ip -n "${PLACES[$place]}" link add "t$number" type $kind$from \
            remote "$underlay$separator$other" 2>"$SERVER_DIR/tunnel"; then
            skipped "$name" "this kernel has none: $(tail -n 1 "$SERVER_DIR/tunnel")"
            return 0
        fi
        ip -n "${PLACES[$place]}" addr add "10.10.$number.$own/24" dev "t$number"
        ip -n "${PLACES[$place]}" link set "t$number" mtu 1400 up
    done
    ask "$name-ping" here "ping -q -c 3 -i 0.1 -W 60 10.10.$number.2"
    same_bytes "$name-bytes" here there "10.10.$number.2"
    same_bytes "$name-bytes-back" there here "10.10.$number.1"
}

# Each form of ring and buffer: testpmd answers pings that come through a switch and its uplink, and
# ping looks at every byte that comes back.
case_testpmd() {
    only_root || return 0
    if [[ $NET_SERVER != sidecore ]]; then
        skipped '' "$NET_SERVER has no socket for it"
        return 0
    fi
    net_inside
    place_namespace host "$NET_HOST"
    server_switch lan
    server_uplink lan tap=lan0
    # DPDK does not seal its memory.
    server_nic foreign switch=lan mtu=9000 allow_unsealed_memory=true
    server_start
    ip -n "$NET_HOST" link set lan0 mtu 9000
    ip -n "$NET_HOST" addr add 10.9.0.100/24 dev lan0
    answers_pings split packed_vq=0 mrg_rxbuf=1 in_order=0
    answers_pings split-single packed_vq=0 mrg_rxbuf=0 in_order=0
    answers_pings split-in-order packed_vq=0 mrg_rxbuf=1 in_order=1
    answers_pings split-in-order-single packed_vq=0 mrg_rxbuf=0 in_order=1
    answers_pings packed packed_vq=1 mrg_rxbuf=1 in_order=0
    answers_pings packed-single packed_vq=1 mrg_rxbuf=0 in_order=0
    answers_pings packed-in-order packed_vq=1 mrg_rxbuf=1 in_order=1
    answers_pings packed-vectorized packed_vq=1 mrg_rxbuf=0 in_order=1 vectorized=1
}

# answers_pings NAME KEY=VALUE...
answers_pings() {
    local name=$1 buffers=() sizes=(56 1472) size count=1000 sent=0
    shift
    # Large frames take several buffers of 2 KiB; without mergeable ones nobody sends such. In packed
    # rings DPDK's driver sends them in tables whose first descriptor, the header's, it marks as one
    # to write to (vring_desc_init_indirect_packed): VIRTIO 2.8.7 forbids it, and the queue stops.
    if [[ $* == *packed_vq=0*mrg_rxbuf=1* ]]; then
        buffers=(--enable-scatter --max-pkt-len=9018)
        sizes+=(8900)
    fi
    testpmd_start "$name" 1 foreign "$@" -- --forward-mode=icmpecho "${buffers[@]}" || return 0
    # The first one asks for the address.
    ask "$name-answers" host 'ping -q -c 3 -i 0.2 -W 60 10.9.0.7'
    for size in "${sizes[@]}"; do
        ask "$name-$size" host "ping -f -q -c $count -w 120 -s $size -p 5a 10.9.0.7 >ping; cat ping
            grep -q '$count received, 0% packet loss' ping && ! grep -q 'wrong data' ping"
        sent=$((sent + count))
    done
    testpmd_stop "$name" || return 0
    testpmd_end "$name" || return 0
    if ((TESTPMD_RX >= sent && TESTPMD_TX >= sent)); then
        passed "$name-counts" "$TESTPMD_RX in, $TESTPMD_TX out"
    else
        failed "$name-counts" "$sent pings, but testpmd counts $TESTPMD_RX in, $TESTPMD_TX out"
    fi
}

# One sends as fast as it can, another receives: what does not arrive was counted as a drop.
case_testpmd_pair() {
    only_root || return 0
    if [[ $NET_SERVER != sidecore ]]; then
        skipped '' "$NET_SERVER has no socket for it"
        return 0
    fi
    server_switch lan
    server_nic from switch=lan allow_unsealed_memory=true
    server_nic to switch=lan allow_unsealed_memory=true
    server_start
    pair_counts split packed_vq=0 mrg_rxbuf=1 in_order=1
    pair_counts packed packed_vq=1 mrg_rxbuf=1 in_order=1
}

# pair_counts NAME KEY=VALUE...
pair_counts() {
    local name=$1 taken dropped sent delivered until_ms
    shift
    delivered=$(nic_counter to delivered_frames)
    dropped=$(nic_counter to dropped_frames)
    testpmd_start "$name-to" 1 to "$@" -- --forward-mode=rxonly || return 0
    testpmd_start "$name-from" 1 from "$@" -- --forward-mode=txonly "--eth-peer=0,$(nic_mac to)" || return 0
    sleep 2
    testpmd_stop "$name-from" || return 0
    sent=$TESTPMD_TX
    # What was on its way arrives, or is dropped.
    until_ms=$(($(now_ms) + 60000))
    until (($(nic_counter to delivered_frames) - delivered + $(nic_counter to dropped_frames) - dropped >= sent)) ||
        (($(now_ms) > until_ms)); do sleep 0.1; done
    sleep 1
    testpmd_stop "$name-to" || return 0
    taken=$TESTPMD_RX
    dropped=$(($(nic_counter to dropped_frames) - dropped))
    testpmd_end "$name-from" || return 0
    testpmd_end "$name-to" || return 0
    if ((sent > 0 && taken > 0 && taken + dropped == sent)); then
        passed "$name" "$sent sent, $taken received, $dropped dropped for want of buffers"
    else
        failed "$name" "$sent sent, but $taken received and $dropped dropped"
    fi
}
