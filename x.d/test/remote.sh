# shellcheck shell=bash
# GROUP: disks and NICs of other machines: a real guest, one that moves, and a machine without guests (root)
# With --all the guest's frames are lost, doubled and late. Run by x.d/test.sh.
# shellcheck disable=SC2034,SC2016,SC2317  # variables here are read by x.d/remote.sh and x.d/moves.sh; words between quotes are for guests; x.d/moves.sh calls what a case defines

group_remote() {
    need_sidecore
    need_guests
    need_guest_image
    MOVER=${CARGO_TARGET_DIR:-$ROOT/target}/debug/vm_mover
    run_cases case_guest case_client case_moves
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

# A machine whose own kernel has a disk and a NIC of an IOhost (docs/decisions/0015-client.md).
case_client() {
    if [[ $GUEST_SERVER != sidecore ]]; then
        skipped '' "$GUEST_SERVER has no disks of other machines"
        return 0
    fi
    need_client_image
    client_world
    client_start || { guest_over machine 30 || true; return 1; }
    client_disk
    client_net
    client_kills
    client_resize
    client_removal
    client_end
    guest_over machine 60
}

client_disk() {
    ask 'size' machine 'test "$(cat /sys/block/vda/size)" = 524288'
    ask 'mkfs.ext4 and mount' machine 'mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt'
    client_fio 'fio --verify' 1
}

# client_fio NAME ROUNDS: in the foreground.
client_fio() {
    local DO_SECONDS=150
    ask "$1" machine "fio --ioengine=libaio --direct=1 --directory=/mnt --name=verify --rw=randwrite --loops=$2 \
        --bssplit=512/5:4k/60:16k/20:64k/10:256k/5 --iodepth=32 --size=8m --numjobs=2 --fsync=64 \
        --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0"
}

client_net() {
    guest_do machine "ip addr add $REMOTE_GUEST/24 dev eth1; ip link set eth1 up"
    ask 'ping' machine "$(await_for 20 "ping -q -c 1 -W 1 $REMOTE_LAN >/dev/null")"
    ask 'ping of 1500 bytes' machine "ping -q -c 3 -i 0.2 -W 60 -s 1472 -M do $REMOTE_LAN"
    tcp 'iperf3 to the switch' machine "$REMOTE_LAN"
    tcp 'iperf3 from the switch' machine "$REMOTE_LAN" -R
}

# Under fio --verify: the daemon is killed, the whole of `sidecore client`, and the IOhost.
client_kills() {
    guest_do machine '{ while [ ! -e /tmp/stop ]; do
        fio --ioengine=libaio --direct=1 --directory=/mnt --name=verify --rw=randwrite \
            --bssplit=512/5:4k/60:16k/20:64k/10:256k/5 --iodepth=32 --size=8m --numjobs=2 \
            --fsync=64 --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0 \
            --output=/tmp/verify.out 2>/tmp/verify.err || { date >/tmp/bad; break; }
        echo round >>/tmp/rounds; done; echo over >/tmp/over; } >/dev/null 2>&1 &' >/dev/null
    client_busy 'fio runs' || return 0
    say 'kill -9 of the daemon'
    ask 'kill -9 of the daemon' machine 'kill -9 "$(pgrep -o -f "sidecore serve")"'
    client_busy 'it goes on after a kill of the daemon' || return 0
    say 'kill -9 of sidecore client, which is started again'
    guest_do machine 'kill -9 "$(cat /tmp/client.pid)"; sleep 0.5' || true
    client_start || return 0
    client_busy 'it goes on after a kill of the client' || return 0
    say 'kill -9 of the IOhost, which is started again'
    iohost_kill a
    iohost_start a || return 0
    client_busy 'it goes on after a kill of the IOhost' || return 0
    guest_do machine 'touch /tmp/stop' >/dev/null
    DO_SECONDS=150 ask 'fio --verify through all of it' machine \
        "$(await_for 140 'test -e /tmp/over'); [ ! -e /tmp/bad ] || { cat /tmp/verify.out /tmp/bad /tmp/verify.err; exit 1; }"
    say "rounds of fio --verify: $(guest_do machine 'grep -c round /tmp/rounds' || true)"
    ask 'e2fsck' machine 'umount /mnt && e2fsck -f -n /dev/vda'
    ask 'ping after all of it' machine "$(await_for 20 "ping -q -c 1 -W 1 $REMOTE_LAN >/dev/null")"
}

# client_busy NAME: the kernel's disk does three hundred requests more within a minute.
client_busy() {
    local before now until_ms=$(($(now_ms) + 60000))
    before=$(client_requests)
    until now=$(client_requests) && ((now > before + 300)); do
        if (($(now_ms) > until_ms)); then
            failed "$1" "requests stand at $now: $(guest_do machine 'cat /tmp/bad /tmp/verify.err; tail -n 12 /tmp/client.log' | tr '\n' ' ')"
            return 1
        fi
        sleep 0.3
    done
    passed "$1"
}

client_requests() { guest_do machine "awk '{ print \$1 + \$5 }' /sys/block/vda/stat"; }

client_resize() {
    CLIENT_DISK=320M client_iohost
    iohost_do a reload >/dev/null || failed reload 'the IOhost does not take another size'
    client_has 'resize is seen' 'grep -qx 655360 /sys/block/vda/size' || true
}

# Removed at the IOhost: what is mounted waits and goes on when it is back; what nobody has open goes, and comes again.
client_removal() {
    guest_do machine 'mount -t ext4 /dev/vda /mnt && dd if=/dev/zero of=/mnt/file bs=1M count=4 conv=fsync 2>/dev/null' || true
    say 'the IOhost is started again without the disk'
    client_iohost_anew ''
    client_has 'removed while it is mounted: said' 'grep -q "vda is in use" /tmp/client.log' 60 || return 0
    guest_do machine '{ dd if=/dev/urandom of=/mnt/other bs=1M count=1 conv=fsync 2>/dev/null && touch /tmp/wrote; } >/dev/null 2>&1 &'
    ask 'its requests wait' machine 'sleep 2; test ! -e /tmp/wrote'
    client_iohost_anew 320M
    client_has 'there again: they go on' 'test -e /tmp/wrote' 60 || return 0
    ask 'e2fsck after that' machine 'umount /mnt && e2fsck -f -n /dev/vda'
    client_iohost_anew ''
    client_has 'removed while nobody has it: gone' '! test -b /dev/vda' 60 || return 0
    ask 'the NIC stays' machine "$(await_for 20 "ping -q -c 1 -W 1 $REMOTE_LAN >/dev/null")"
    client_iohost_anew 320M
    client_has 'added at the IOhost: there again' 'test -b /dev/vda' 60 || return 0
    ask 'e2fsck of what came again' machine 'e2fsck -f -n /dev/vda'
}

# client_iohost_anew SIZE: the IOhost is started again with a disk of that size, or without one.
client_iohost_anew() {
    CLIENT_DISK=$1 client_iohost
    kill -TERM "${IOHOST_PIDS[a]}"
    end_within 90 "${IOHOST_PIDS[a]}" || failed 'the IOhost ends' "status $?"
    disown_pid "${IOHOST_PIDS[a]}"
    iohost_start a
}

# A disk that is mounted is not taken away by the first signal.
client_end() {
    ask 'mount at the end' machine 'mount -t ext4 /dev/vda /mnt'
    guest_do machine 'kill -TERM "$(cat /tmp/client.pid)"'
    client_has 'a mounted disk stays' 'test "$(grep -c "vda is in use" /tmp/client.log)" = 2' || return 0
    ask 'and is served' machine 'dd if=/dev/zero of=/mnt/file bs=1M count=1 conv=fsync 2>/dev/null && test -b /dev/vda'
    guest_do machine 'umount /mnt'
    client_has 'the disk goes when it is free' '! test -b /dev/vda' || return 0
    client_has 'the NIC goes' '! ip link show eth1' || return 0
    client_has 'nothing is left' '! pgrep sidecore && test -z "$(ls /sys/bus/vdpa/devices)" && test "$(ls /dev/vduse)" = control' || true
}

# A guest whose disk and NIC are an IOhost's moves between two VM hosts, and takes both along. With --all twenty times.
case_moves() {
    if [[ $GUEST_SERVER != sidecore ]]; then
        skipped '' "$GUEST_SERVER has no disks of other machines"
        return 0
    fi
    local at wanted=4 SIDE=a VM='' MOVES=0 DOWNTIMES='' PAUSES='' TIMES='' GAPS='' LOST=0 stopped=()
    [[ -z $TEST_ALL ]] || wanted=20
    # QEMU's emulation loses pages of some (docs/decisions/0010). So memories are compared at each move, before the
    # guest goes on; otherwise one that is broken by that could not be told from one that a daemon has broken.
    [[ $(accelerator) != tcg* ]] || LOST=16 stopped=(-S)
    nobody_has() { remote_nobody_has "$1"; }
    # Of the daemon that the guest is at; nobody listens for announcements: the port of its address is the same one.
    disk_socket() { printf '%s/%s/%s.sock' "$SERVER_DIR" "$SIDE" "$1"; }
    announcements_begin() { :; }
    announcements_end() { :; }
    remote_hosts
    remote_moves_begin
    for ((at = 1; at <= wanted; at++)); do
        move "move-$at" "${stopped[@]}" || break
        remote_moved "move-$at" "$(now_ms)" || break
    done
    remote_moves_end "$wanted"
}

# remote_hosts: IOhost `store`, and VM hosts `a` and `b`, each in a namespace of its own with a way to it.
remote_hosts() {
    local -A spaces
    local side number=1
    net_inside
    remote_lan
    IOHOST_ADDRESSES+=([store]=10.77.1.1)
    remote_place store
    spaces=([a]=$NET_HOST [b]=$(namespace_name b))
    own_namespace "${spaces[b]}"
    ip -n "${spaces[b]}" link add to-store type veth peer name to-b netns "${IOHOST_SPACES[store]}"
    ip -n "${spaces[b]}" addr add 10.77.2.2/24 dev to-store
    ip -n "${spaces[b]}" link set to-store up
    ip -n "${IOHOST_SPACES[store]}" addr add 10.77.2.1/24 dev to-b
    ip -n "${IOHOST_SPACES[store]}" link set to-b up
    truncate -s 128M "$(disk_image db)"
    DISK_QUEUES+=([root]=2)
    NIC_QUEUES+=([net]=1) NIC_MTUS+=([net]=1500) NIC_MACS+=([net]=52:54:00:51:00:78)
    remote_store
    iohost_start store
    for side in a b; do
        remote_vmhost "$side" "10.77.$number.1"
        number=$((number + 1))
        NET_INSIDE=(ip netns exec "${spaces[$side]}")
        side_start "$side"
    done
}

# remote_store: the IOhost's configuration. Both VM hosts may have the disk and the NIC.
remote_store() {
    mkdir -p "$SERVER_DIR/store/state"
    {
        cat <<END
[daemon]
api = "$SERVER_DIR/store/api.sock"
run_dir = "$SERVER_DIR/store"
state_dir = "$SERVER_DIR/store/state"
[sidecores]
cpus = "auto"
[[disk]]
id = "db"
path = "$(disk_image db)"
[[switch]]
id = "lan"
[[switch.uplink]]
interface = "lan0"
[[switch.uplink]]
remote = "net"
mac = "$(nic_mac net)"
spoof = "deny"
[[link]]
id = "rack"
role = "iohost"
udp = "0.0.0.0:$REMOTE_PORT"
key_file = "$SERVER_DIR/iohost.key"
# Longer than a move may take: what waited for its end would be noticed.
lease_s = 120
END
        local side
        remote_key iohost >/dev/null
        for side in a b; do
            printf '[[link.client]]\nname = "%s"\nkey = "%s"\ndisks = ["db"]\nnics = ["net"]\n' "$side" "$(remote_key "$side")"
        done
    } >"$SERVER_DIR/store/sidecore.toml"
}

# remote_vmhost SIDE IOHOST: a VM host's configuration.
remote_vmhost() {
    mkdir -p "$SERVER_DIR/$1/state"
    cat >"$SERVER_DIR/$1/sidecore.toml" <<END
[daemon]
api = "$SERVER_DIR/$1/api.sock"
run_dir = "$SERVER_DIR/$1"
state_dir = "$SERVER_DIR/$1/state"
[sidecores]
cpus = "auto"
[[link]]
id = "rack"
role = "client"
iohosts = ["$2:$REMOTE_PORT"]
iohost_key = "$(remote_key iohost)"
key_file = "$SERVER_DIR/$1.key"
[[disk]]
id = "root"
link = "rack"
remote = "db"
queues = 2
[[nic]]
id = "net"
by_link = "rack"
mac = "$(nic_mac net)"
END
}

# remote_moves_begin: a guest at VM host a, with fio --verify on its disk, and lines both ways over its NIC.
remote_moves_begin() {
    GUEST_FROM='' GUEST_QEMU=() PACKED=''
    vm_begin
    VM=vm$VM_NUMBER
    guest_ready "$VM" orders
    guest_do "$VM" "ip link set eth0 up; ip addr add $REMOTE_GUEST/24 dev eth0
        mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt"
    ask 'ping at the first host' "$VM" "$(await_for 20 "ping -q -c 1 -W 1 $REMOTE_LAN >/dev/null")"
    guest_do "$VM" '{ while [ ! -e /tmp/stop ]; do
        fio --ioengine=libaio --direct=1 --directory=/mnt --name=verify --rw=randwrite \
            --bssplit=512/5:4k/60:16k/20:64k/10:256k/5 --iodepth=32 --size=4m --numjobs=2 \
            --fsync=64 --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0 \
            --output=/tmp/verify.out 2>/tmp/verify.err || { date >/tmp/bad; break; }
        echo round >>/tmp/rounds; done; echo over >/tmp/over; } >/dev/null 2>&1 &'
    stream_start lan "$VM" "$REMOTE_GUEST" 7201
    stream_start "$VM" lan "$REMOTE_LAN" 7202
}

# link_has SIDE KIND: whether that VM host has the disk (disks) or the NIC (nics).
link_has() { "$SIDECORE" --api "$SERVER_DIR/$1/api.sock" remote status --json | jq -r ".links[0].$2[0].in_use"; }

# remote_nobody_has NAME: while the guest waits, neither VM host has its disk.
remote_nobody_has() {
    local at='' until_ms=$(($(now_ms) + 90000))
    # What is shown is looked at ten times a second.
    until at="$(link_has "$SIDE" disks) $(link_has "$TO_SIDE" disks)" && [[ $at == 'false false' ]]; do
        if (($(now_ms) > until_ms)); then
            failed "$1" "the disk is in use at $SIDE, and at $TO_SIDE: $at"
            return 0
        fi
        sleep 0.05
    done
    passed "$1"
}

# remote_moved NAME SINCE_MS: the disk and the NIC are at SIDE and not at the other host, and lines go on both ways.
remote_moved() {
    local before now='' at other until_ms=$(($(now_ms) + 60000))
    other=$(other_side "$SIDE")
    before="$(stream_at "$VM" 7201) $(stream_at lan 7202)" || true
    until now="$(stream_at "$VM" 7201) $(stream_at lan 7202)" && awk '{ exit !($3 > $1 && $4 > $2) }' <<<"$before $now"; do
        if (($(now_ms) > until_ms)); then
            failed "$1-lines" "in 60 s from '$before' to '$now'"
            show_tail "$SERVER_DIR/$SIDE/log" "VM host $SIDE"
            show_tail "$SERVER_DIR/store/log" 'the IOhost'
            return 1
        fi
        sleep 0.05
    done
    GAPS+=" $(($(now_ms) - $2))"
    passed "$1-lines"
    # What is shown is looked at ten times a second.
    until at="$(link_has "$SIDE" disks) $(link_has "$SIDE" nics) $(link_has "$other" disks) $(link_has "$other" nics)" &&
        [[ $at == 'true true false false' ]]; do
        if (($(now_ms) > until_ms)); then
            failed "$1-taken-along" "disk and NIC at $SIDE, and at $other: $at"
            return 1
        fi
        sleep 0.05
    done
    passed "$1-taken-along"
    # At the move that it came of.
    ask "$1-verify" "$VM" 'test ! -e /tmp/bad || { cat /tmp/verify.out /tmp/verify.err; exit 1; }'
}

remote_moves_end() {
    local most report DO_SECONDS=90
    guest_do "$VM" 'touch /tmp/stop' || true
    ask 'fio --verify' "$VM" "$(await_for 80 'test -e /tmp/over'); [ ! -e /tmp/bad ] || { cat /tmp/verify.out /tmp/bad /tmp/verify.err; exit 1; }"
    say "remote: $(guest_do "$VM" 'wc -l </tmp/rounds') rounds of fio --verify"
    stream_end 'lines to the guest' lan "$VM" 7201
    stream_end 'lines from the guest' "$VM" lan 7202
    ask 'e2fsck in the guest' "$VM" 'umount /mnt && e2fsck -f -n /dev/vda'
    # Where memories are compared the guest waits for that, and it is not known for how long it would have stood still.
    most=$(tr ' ' '\n' <<<"${PAUSES:-$GAPS}" | sort -n | tail -n 1)
    report="$MOVES moves; "
    [[ -z $PAUSES ]] || report+="the guest's processors stood still for$PAUSES ms, "
    report+="lines went on both ways within$GAPS ms"
    # A machine that emulates guests beside other work: seconds, not two minutes, as it would be if a lease had to end.
    if ((MOVES == $1 && ${most:-120000} < 100000)); then
        passed pause "$report"
    else
        failed pause "$1 wanted: $report"
    fi
    say "remote: $report"
    guest_over "$VM" 60
}
