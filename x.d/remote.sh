# shellcheck shell=bash
# Disks and NICs of other machines. The VM host's daemon is server.sh's and runs in the namespace NET_HOST; each IOhost is a daemon
# in a namespace of its own, joined to that one by a pair of interfaces. IOhosts `a` and `b` have one image, which is
# locked by who serves it, and one key. `b` does not see the processes of `a`, as if it were another machine, and stands by.
# It is none, though: after the end of a machine what its guests had not flushed is taken for lost (docs/remote.md), which
# is not what is shown here. Used by `./x demo remote` and x.d/test/remote.sh. Sourced by ./x.
#
# Both IOhosts have a switch on one network, the bridge of a namespace, REMOTE_LAN; the guest's NIC is a port of it.
#
#   remote_world         keys, namespaces, IOhost a, the VM host's daemon, and a guest with its disk `root` and its NIC `vm1-net`
#   remote_load          the guest works; a is killed and started again; b begins to stand by; a is killed for good
#   remote_end           the guest is off; the image is whole
#   remote_status NAME   what `sidecore remote status` says at a, b or vmhost
#
# REMOTE_LOSS=yes: frames are lost, doubled and late on the way, by the kernel or, where it cannot, by a relay (bad_wire).

declare -A IOHOST_PIDS=() IOHOST_SPACES=() IOHOST_ADDRESSES=([a]=10.77.1.1 [b]=10.77.2.1)
REMOTE_PORT=7447
REMOTE_LOSS=
REMOTE_DISK=256M
# Addresses on that network: a server's, and the guest's.
REMOTE_LAN=10.78.0.1
REMOTE_GUEST=10.78.0.2
# Percent lost, percent doubled, and how late at most, microseconds.
REMOTE_BAD=(1 1 500)
WIRE_KEEPER=
WIRE_PIDS=()

# remote_key NAME: the public half of a key that is made if it is not there.
remote_key() { "$SIDECORE" link key "$SERVER_DIR/$1.key"; }

# remote_place NAME: a namespace for an IOhost, joined to the VM host's.
remote_place() {
    local namespace
    namespace=$(namespace_name "$1")
    own_namespace "$namespace"
    IOHOST_SPACES[$1]=$namespace
    net_pair "to-$1" to-vmhost "$namespace"
    ip -n "$NET_HOST" addr add "${IOHOST_ADDRESSES[$1]%.1}.2/24" dev "to-$1"
    ip -n "$namespace" addr add "${IOHOST_ADDRESSES[$1]}/24" dev to-vmhost
    ip -n "$namespace" link add lan0 type veth peer name "lan-$1" netns "${PLACES[lan]}"
    ip -n "$namespace" link set lan0 up
    ip -n "${PLACES[lan]}" link set "lan-$1" master lan up
}

# remote_lan: the network that both IOhosts' switches are on, and somebody who answers there.
remote_lan() {
    place_namespace lan "$(namespace_name lan)"
    own_namespace "${PLACES[lan]}"
    ip -n "${PLACES[lan]}" link add lan type bridge
    ip -n "${PLACES[lan]}" addr add "$REMOTE_LAN/24" dev lan
    ip -n "${PLACES[lan]}" link set lan up
    place_do lan 'iperf3 -s -D' >"$SERVER_DIR/iperf3"
}

# remote_iohost NAME: its configuration.
remote_iohost() {
    mkdir -p "$SERVER_DIR/$1/state"
    cat >"$SERVER_DIR/$1/sidecore.toml" <<END
[daemon]
api = "$SERVER_DIR/$1/api.sock"
run_dir = "$SERVER_DIR/$1"
state_dir = "$SERVER_DIR/$1/state"

[sidecores]
cpus = "auto"

[[disk]]
id = "db"
path = "$(disk_image db)"
size = "$REMOTE_DISK"
# Its lock is with the one that serves it, and the other one stands by.
migratable = true

[[switch]]
id = "lan"

[[switch.uplink]]
interface = "lan0"

# The port of the guest's NIC.
[[switch.uplink]]
remote = "vm1-net"
mac = "$(nic_mac vm1-net)"
spoof = "deny"

[[link]]
id = "rack"
role = "iohost"
udp = "0.0.0.0:$REMOTE_PORT"
key_file = "$SERVER_DIR/iohost.key"

[[link.client]]
name = "vmhost"
key = "$(remote_key vmhost)"
disks = ["db"]
nics = ["vm1-net"]
END
}

# iohost_start NAME: it listens when this returns.
iohost_start() {
    local until_ms=$(($(now_ms) + 90000)) inside=(ip netns exec "${IOHOST_SPACES[$1]}")
    rm -f "$SERVER_DIR/$1/api.sock"
    "${inside[@]}" "$SIDECORE" serve --config "$SERVER_DIR/$1/sidecore.toml" >>"$SERVER_DIR/$1/log" 2>&1 3>&- &
    IOHOST_PIDS[$1]=$!
    own "${IOHOST_PIDS[$1]}"
    until iohost_do "$1" ls >/dev/null 2>&1; do
        if ! alive "${IOHOST_PIDS[$1]}" || (($(now_ms) > until_ms)); then
            show_tail "$SERVER_DIR/$1/log" "IOhost $1"
            failed "iohost-$1" 'it does not start'
            return 1
        fi
        sleep 0.02
    done
}

iohost_kill() {
    kill -KILL "${IOHOST_PIDS[$1]}"
    wait "${IOHOST_PIDS[$1]}" 2>/dev/null || true
    disown_pid "${IOHOST_PIDS[$1]}"
}

# iohost_do NAME ARGUMENTS...: a command to its daemon.
iohost_do() { "$SIDECORE" --api "$SERVER_DIR/$1/api.sock" "${@:2}"; }

# remote_requests NAME: how many the disk has had since that IOhost's daemon was started.
remote_requests() { iohost_do "$1" show db --json 2>/dev/null | jq -r '.counters.requests // 0' 2>/dev/null || echo 0; }

remote_status() {
    printf '\n%s:\n' "$1 ($2)"
    if [[ $1 == vmhost ]]; then sidecore_do remote status; else iohost_do "$1" remote status; fi
}

# remote_way NAME: where the VM host sends what is for an IOhost; a bad way if that is wanted.
remote_way() {
    local port=$((7000 + ${#WIRE_PIDS[@]})) to=${IOHOST_ADDRESSES[$1]}:$REMOTE_PORT
    if [[ -z $REMOTE_LOSS || $REMOTE_LOSS == kernel ]]; then
        REMOTE_WAYS+=("$to")
        return
    fi
    ip netns exec "$NET_HOST" "${CARGO_TARGET_DIR:-$ROOT/target}/debug/bad_wire" "127.0.0.1:$port" "$to" "$port" \
        "${REMOTE_BAD[@]}" <"$SERVER_DIR/wire" >"$SERVER_DIR/wire-$1" 2>&1 3>&- &
    WIRE_PIDS+=("$!")
    own "$!"
    REMOTE_WAYS+=("127.0.0.1:$port")
}

# remote_ways: both, in REMOTE_WAYS.
remote_ways() {
    local name
    REMOTE_WAYS=() WIRE_PIDS=()
    if [[ -n $REMOTE_LOSS ]] && kernel_loses; then REMOTE_LOSS=kernel; fi
    if [[ $REMOTE_LOSS == yes ]]; then
        say "this kernel has no netem: ${REMOTE_BAD[0]}% of datagrams are lost by bad_wire"
        cargo_quietly build -p tests --bin bad_wire
        # The relays end with their input.
        mkfifo "$SERVER_DIR/wire"
        sleep 100000 >"$SERVER_DIR/wire" 3>&- &
        WIRE_KEEPER=$!
        own "$WIRE_KEEPER"
    fi
    for name in a b; do remote_way "$name"; done
}

# kernel_loses: both ends of both pairs lose frames from here on; not every kernel can.
kernel_loses() {
    local name rules=(loss "${REMOTE_BAD[0]}%" duplicate "${REMOTE_BAD[1]}%" delay "${REMOTE_BAD[2]}us")
    for name in a b; do
        tc -n "$NET_HOST" qdisc add dev "to-$name" root netem "${rules[@]}" 2>/dev/null || return
        tc -n "${IOHOST_SPACES[$name]}" qdisc add dev to-vmhost root netem "${rules[@]}" 2>/dev/null || return
    done
    say "netem loses ${REMOTE_BAD[0]}% of frames on both ways"
}

# remote_lost: what was lost on the way is told, and was something.
remote_lost() {
    local lost=0 name pid
    [[ -n $REMOTE_LOSS ]] || return 0
    if [[ $REMOTE_LOSS == kernel ]]; then
        lost=$(for name in a b; do
            tc -n "$NET_HOST" -s qdisc show dev "to-$name"
            tc -n "${IOHOST_SPACES[$name]}" -s qdisc show dev to-vmhost
        done | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' | awk '{ sum += $1 } END { print sum + 0 }')
        name="netem lost $lost"
    else
        kill "$WIRE_KEEPER"
        for pid in "${WIRE_PIDS[@]}"; do end_within 5 "$pid" || true; done
        lost=$(awk '{ sum += $3 } END { print sum + 0 }' "$SERVER_DIR"/wire-[ab])
        name="bad_wire: a $(cat "$SERVER_DIR/wire-a"); b $(cat "$SERVER_DIR/wire-b")"
    fi
    if ((lost > 0)); then passed frames-lost "$name"; else failed frames-lost "none was: $name"; fi
}

remote_world() {
    net_inside
    server_nic vm1-net by_link=rack
    remote_lan
    remote_place a
    remote_place b
    local public
    public=$(remote_key iohost)
    remote_iohost a
    remote_iohost b
    remote_ways
    cat >>"$SERVER_CONFIG" <<END

[[disk]]
id = "root"
link = "rack"
remote = "db"
queues = 2

[[link]]
id = "rack"
role = "client"
iohosts = ["${REMOTE_WAYS[0]}", "${REMOTE_WAYS[1]}"]
iohost_key = "$public"
key_file = "$SERVER_DIR/vmhost.key"
END
    SERVER_SOCKETS+=("$(disk_socket root)")
    DISK_QUEUES['root']=2
    say "starting IOhost a at ${IOHOST_ADDRESSES[a]}, which has the image and a switch, and the VM host's daemon, which has neither"
    iohost_start a
    server_start
    say "booting a guest on the VM host ($(accelerator | cut -d, -f1)); its disk is 'db' of IOhost a, its NIC a port of the switch there"
    GUEST_NICS=(vm1-net)
    guest_start vm1 orders root
    guest_ready vm1 orders
    guest_do vm1 "ip addr add $REMOTE_GUEST/24 dev eth0; ip link set eth0 up"
}

# remote_net WHEN: the guest and the server of that network, which is behind an IOhost, talk to one another.
remote_net() {
    ask "ping $1" vm1 "$(await_for 20 "ping -q -c 1 -W 1 $REMOTE_LAN >/dev/null")"
    # The longest that goes in one piece of 1500, which the link of 1500 carries in two.
    ask "ping of 1500 bytes $1" vm1 "ping -q -c 3 -i 0.2 -W 60 -s 1472 -M do $REMOTE_LAN"
    tcp "iperf3 guest to lan $1" vm1 "$REMOTE_LAN"
    tcp "iperf3 lan to guest $1" vm1 "$REMOTE_LAN" -R
    awk -F'\t' -v when="$1" '/iperf3/ && index($2, when) { print "      " $2 ": " $3 }' "$OUTCOMES" >&2
}

# stands_by: a has the image's lock, and b has not.
stands_by() {
    local locks
    locks=$(for name in a b; do iohost_do "$name" show db --json | jq -r .locked; done | xargs)
    if [[ $locks != 'true false' ]]; then
        failed 'b stands by' "who has the lock, a and b: '$locks', not 'true false'"
        return 1
    fi
    passed 'b stands by' 'a has the lock'
}

# remote_serves NAME SINCE_MS SECONDS: until it has served a request of the disk; in SERVED_MS how long that took.
remote_serves() {
    local until_ms=$(($(now_ms) + ($3 < 60 ? 60 : $3) * 1000))
    until (($(remote_requests "$1") > 0)); do
        if (($(now_ms) > until_ms)); then
            failed "$1-serves" "IOhost $1 has served nothing in time"
            show_tail "$SERVER_DIR/$1/log" "IOhost $1"
            show_tail "$SERVER_LOG" 'the VM host'
            return 1
        fi
        sleep 0.02
    done
    SERVED_MS=$(($(now_ms) - $2))
}

# remote_busy: the guest is in the midst of its load, and IOhost NAME serves it.
remote_busy() {
    local before until_ms=$(($(now_ms) + 90000))
    before=$(remote_requests "$1")
    until (($(remote_requests "$1") > before + 300)); do
        if (($(now_ms) > until_ms)); then
            failed "$2" "the guest asks IOhost $1 for nothing: $(guest_do vm1 'cat /tmp/bad /tmp/verify.err' | tr '\n' ' ')"
            return 1
        fi
        sleep 0.1
    done
    passed "$2"
}

remote_load() {
    local killed_ms
    remote_net 'at a'
    ask 'mkfs.ext4 and mount' vm1 'mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt'
    guest_do vm1 '{ while [ ! -e /tmp/stop ]; do
        fio --ioengine=libaio --direct=1 --directory=/mnt --name=verify --rw=randwrite \
            --bssplit=512/5:4k/60:16k/20:64k/10:256k/5 --iodepth=32 --size=8m --numjobs=2 \
            --fsync=64 --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0 \
            --output=/tmp/verify.out 2>/tmp/verify.err || { date >/tmp/bad; break; }
        echo round >>/tmp/rounds; done; echo over >/tmp/over; } >/dev/null 2>&1 &' >/dev/null
    remote_busy a 'a serves fio --verify' || return 1

    sleep "0.$((RANDOM % 9 + 1))"
    say "kill -9 ${IOHOST_PIDS[a]}: IOhost a's daemon is gone at $(date +%T.%3N), and started again"
    killed_ms=$(now_ms)
    iohost_kill a
    iohost_start a || return 1
    remote_serves a "$killed_ms" 30 || return 1
    say "IOhost a serves the guest again after $SERVED_MS ms"
    passed 'a killed -9 and back' "served again after $SERVED_MS ms"
    remote_busy a 'a serves fio --verify again' || return 1
    remote_net 'at a that is back'

    say "starting IOhost b at ${IOHOST_ADDRESSES[b]}, with the same image"
    iohost_start b || return 1
    stands_by || return 1
    sleep "0.$((RANDOM % 9 + 1))"
    say "kill -9 ${IOHOST_PIDS[a]}: IOhost a is gone for good at $(date +%T.%3N); b has waited for the image's lock"
    killed_ms=$(now_ms)
    iohost_kill a
    remote_serves b "$killed_ms" 60 || return 1
    say "IOhost b serves the guest after $SERVED_MS ms"
    passed 'b has taken over' "served after $SERVED_MS ms"
    remote_busy b 'b serves fio --verify' || return 1
    remote_net 'at b'
    remote_shown
}

# remote_shown: what both ends say of the link, and that it is so.
remote_shown() {
    remote_status vmhost 'client of the link' >&2
    remote_status b 'IOhost' >&2
    printf '\n' >&2
    local peer
    peer=$(sidecore_do remote status --json | jq -r '.links[] | select(.id == "rack") | "\(.sessions) \(.peer)"')
    if [[ $peer == "1 ${REMOTE_WAYS[1]}" ]]; then
        passed 'remote status names b' "${peer#1 }"
    else
        failed 'remote status names b' "sessions and peer are '$peer', not '1 ${REMOTE_WAYS[1]}'"
    fi
}

remote_end() {
    local DO_SECONDS=100 errors bad=0
    guest_do vm1 'touch /tmp/stop' >/dev/null || true
    ask 'fio --verify in the guest' vm1 \
        "$(await_for 90 'test -e /tmp/over'); [ ! -e /tmp/bad ] || { cat /tmp/verify.out /tmp/bad /tmp/verify.err; exit 1; }"
    say "rounds of fio --verify in the guest: $(guest_do vm1 'grep -c round /tmp/rounds' || true)"
    ask 'e2fsck in the guest' vm1 'umount /mnt && e2fsck -f -n /dev/vda'
    errors=$(disk_counter root errors)
    if [[ $errors == 0 ]]; then passed 'requests with an error: 0'; else failed 'requests with an error: 0' "$errors"; fi
    guest_over vm1 60 || bad=1
    server_stop || bad=1
    remote_lost
    # The host's own tools, on the image that is left.
    if e2fsck -f -n "$(disk_image db)" >"$SERVER_DIR/fsck" 2>&1; then
        passed 'e2fsck of the image'
    else
        failed 'e2fsck of the image' "$(tail -n 3 "$SERVER_DIR/fsck" | tr '\n' ' ')"
    fi
    return "$bad"
}
