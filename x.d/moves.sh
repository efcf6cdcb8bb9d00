# shellcheck shell=bash
# A guest that moves between two daemons, `a` and `b`, which have one image and whose switches are joined by a
# bridge: the daemons, the two VMs, one move, what the network hears of it. Sourced by ./x.
#
#   two_daemons                       both serve the disk `root` and the NIC `net`
#   vm_begin, vm_boot, vm_over        a guest's VM at one of them, and the one that it is to move to
#   move, mover                       one move; what became of it is in MOVED
#   announcements_begin|end           whether the network is told where the guest is now
#
# Cases are in x.d/test/migrate.sh, which builds MOVER and says where sockets are.
# shellcheck disable=SC2034  # variables here are read by x.d/guest.sh and x.d/net.sh

declare -A SIDE_PIDS=()

# two_daemons: both serve the disk `root` and the NIC `net`, on a switch that leads to the bridge of NET_HOST.
two_daemons() {
    net_inside
    place_namespace host "$NET_HOST"
    ip -n "$NET_HOST" link add lan type bridge mcast_snooping 0
    ip -n "$NET_HOST" link set lan up
    ip -n "$NET_HOST" addr add 10.9.0.100/24 dev lan
    truncate -s 128M "$(disk_image root)"
    DISK_QUEUES+=([root]=2)
    NIC_QUEUES+=([net]=1)
    NIC_MTUS+=([net]=1500)
    NIC_MACS+=([net]=52:54:00:51:00:77)
    local side
    for side in a b; do
        mkdir -p "$SERVER_DIR/$side/state"
        cat >"$SERVER_DIR/$side/sidecore.toml" <<END
[daemon]
api = "$SERVER_DIR/$side/api.sock"
run_dir = "$SERVER_DIR/$side"
state_dir = "$SERVER_DIR/$side/state"
[sidecores]
cpus = "auto"
[[disk]]
id = "root"
path = "$(disk_image root)"
queues = 2
migratable = true
[[switch]]
id = "lan"
[[switch.uplink]]
tap = "lan-$side"
[[nic]]
id = "net"
switch = "lan"
mac = "$(nic_mac net)"
END
        side_start "$side"
    done
    bridged
}

# bridged: the taps of both daemons are ports of the bridge, also after one was made anew.
bridged() {
    local side
    for side in a b; do
        ip -n "$NET_HOST" link set "lan-$side" up master lan 2>/dev/null || true
    done
}

# side_start SIDE: its daemon is there when it returns.
side_start() {
    local side=$1 until_ms=$(($(now_ms) + 90000))
    rm -f "$SERVER_DIR/$side/api.sock"
    "${NET_INSIDE[@]}" "$SIDECORE" serve --config "$SERVER_DIR/$side/sidecore.toml" \
        >>"$SERVER_DIR/$side/log" 2>&1 3>&- &
    SIDE_PIDS[$side]=$!
    own "${SIDE_PIDS[$side]}"
    until [[ -S $SERVER_DIR/$side/root.sock && -S $SERVER_DIR/$side/api.sock ]]; do
        if ! alive "${SIDE_PIDS[$side]}" || (($(now_ms) > until_ms)); then
            show_tail "$SERVER_DIR/$side/log" "daemon $side"
            failed "daemon-$side" 'it does not start'
            return 1
        fi
        sleep 0.02
    done
}

side_kill() {
    kill -KILL "${SIDE_PIDS[$1]}" 2>/dev/null || true
    wait "${SIDE_PIDS[$1]}" 2>/dev/null || true
    disown_pid "${SIDE_PIDS[$1]}"
}

# side_shown SIDE FIELD: of the disk.
side_shown() { "$SIDECORE" --api "$SERVER_DIR/$1/api.sock" show root --json | jq -r ".$2"; }

# A guest is in VM, which is vmNUMBER, at daemon SIDE.
VM=
VM_NUMBER=0
PACKED=
# Who has its disk and NIC: sidecore, or QEMU itself (qemu).
DEVICES=sidecore
# Options of each QEMU.
VM_MORE=()

# vm_begin: the next QEMU, at SIDE; GUEST_QEMU as given.
vm_begin() {
    VM_NUMBER=$((VM_NUMBER + 1))
    GUEST_QEMU+=("${VM_MORE[@]}")
    if [[ $DEVICES == sidecore ]]; then
        GUEST_NICS=("net$PACKED")
        guest_start "vm$VM_NUMBER" orders "root$PACKED"
    else
        GUEST_NICS=()
        own_devices "tap$VM_NUMBER"
        GUEST_INSIDE=("${NET_INSIDE[@]}")
        guest_start "vm$VM_NUMBER" orders
        GUEST_INSIDE=()
    fi
    local until_ms=$(($(now_ms) + 90000))
    until [[ -S $SERVER_DIR/vm$VM_NUMBER.qmp ]]; do
        (($(now_ms) < until_ms)) || { failed "vm$VM_NUMBER" "no monitor: $(tail -n 2 "$SERVER_DIR/vm$VM_NUMBER.qemu")"; return 1; }
        sleep 0.02
    done
}

# own_devices TAP: QEMU's own, on the same image and the same bridge; added to GUEST_QEMU.
own_devices() {
    ip -n "$NET_HOST" tuntap add "$1" mode tap vnet_hdr
    ip -n "$NET_HOST" link set "$1" up master lan
    # shellcheck disable=SC2054  # the commas are QEMU's
    GUEST_QEMU+=(
        -blockdev "driver=file,node-name=file,filename=$(disk_image root),cache.direct=on,aio=io_uring,discard=unmap"
        -blockdev driver=raw,node-name=raw,file=file,cache.direct=on,discard=unmap
        -device virtio-blk-pci,drive=raw,id=d0,num-queues=2
        -netdev "tap,id=nn0,ifname=$1,script=no,downscript=no,vhost=off"
        -device "virtio-net-pci,netdev=nn0,id=dn0,mac=$(nic_mac net),vectors=0")
}

# vm_boot [PROPERTY]: a guest at daemon a, with fio --verify in a file system and TCP both ways.
vm_boot() {
    PACKED=$1 SIDE=a GUEST_FROM='' GUEST_QEMU=()
    vm_begin
    VM=vm$VM_NUMBER
    guest_ready "$VM" orders
    guest_do "$VM" 'ip link set eth0 up; ip addr add 10.9.0.1/24 dev eth0; iperf3 -s -D
        mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt && rm -f /tmp/stop /tmp/over /tmp/bad'
    guest_do "$VM" '{ while [ ! -e /tmp/stop ]; do
        fio --ioengine=libaio --direct=1 --directory=/mnt --name=verify --rw=randwrite \
            --bssplit=512/5:4k/60:16k/20:64k/10:256k/5 --iodepth=32 --size='"$(migrate_often 4m 8m)"' --numjobs=2 \
            --fsync=64 --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0 \
            --output=/tmp/verify.out 2>/tmp/verify.err || { date >/tmp/bad; break; }
        echo round >>/tmp/rounds; done; echo over >/tmp/over; } >/dev/null 2>&1 &'
    stream_start host "$VM" 10.9.0.1 7201
    stream_start "$VM" host 10.9.0.100 7202
    LOAD_RATE=5M load_start host 10.9.0.1 600
}

# vm_over: the load was right to its end, and the disk is whole.
vm_over() {
    streams_moved "$1streams"
    # A connection that was held up for long tries again by and by.
    local until_ms=$(($(now_ms) + 90000))
    until load_flows host; do
        (($(now_ms) < until_ms)) || break
        sleep 0.2
    done
    load_end "$1load" host
    guest_do "$VM" 'touch /tmp/stop' || true
    DO_SECONDS=90 ask "$1verify" "$VM" "$(await_for 80 'test -e /tmp/over'); [ ! -e /tmp/bad ] || { cat /tmp/verify.out /tmp/bad /tmp/verify.err; exit 1; }"
    say "migrate: $(guest_do "$VM" 'wc -l </tmp/rounds') rounds of fio --verify"
    stream_end "$1lines-in" host "$VM" 7201
    stream_end "$1lines-out" "$VM" host 7202
    ask "$1fsck" "$VM" 'umount /mnt && e2fsck -f -n /dev/vda'
    [[ $DEVICES != sidecore ]] || one_writer "$1writer"
    guest_over "$VM"
}

# streams_moved NAME: both go on.
streams_moved() {
    local before now='' until_ms=$(($(now_ms) + 90000))
    before="$(stream_at "$VM" 7201) $(stream_at host 7202)"
    while (($(now_ms) < until_ms)); do
        sleep 0.2
        now="$(stream_at "$VM" 7201) $(stream_at host 7202)"
        if awk '{ exit !($3 > $1 && $4 > $2) }' <<<"$before $now"; then
            passed "$1"
            return 0
        fi
    done
    failed "$1" "in time from '$before' to '$now'"
    show_tail "$SERVER_DIR/$VM.qemu" "guest $VM, QEMU"
    show_tail "$SERVER_DIR/$SIDE/log" "daemon $SIDE"
    {
        guest_do "$VM" 'cat /proc/interrupts /proc/net/dev; ip addr; ps' || true
        "$SIDECORE" --api "$SERVER_DIR/$SIDE/api.sock" show root || true
        "$SIDECORE" --api "$SERVER_DIR/$SIDE/api.sock" nic show net || true
        ip -n "$NET_HOST" -s link
        ss -tn -N "$NET_HOST" || true
    } >"$SERVER_DIR/stands" 2>&1
    return 1
}

# one_writer NAME: the daemon where the guest is has the image, the other one has not.
one_writer() {
    local other=a
    [[ $SIDE == b ]] || other=b
    side_locked "$SIDE" 5
    if [[ $(side_shown "$SIDE" locked) == true && $(side_shown "$other" locked 2>/dev/null) != true ]]; then
        passed "$1"
    else
        failed "$1" "locked: $SIDE $(side_shown "$SIDE" locked), $other $(side_shown "$other" locked)"
    fi
}

other_side() { if [[ $1 == a ]]; then echo b; else echo a; fi; }

# move_begin [-S]: a QEMU waits at the other daemon; TO and TO_SIDE say which.
move_begin() {
    local from_side=$SIDE
    TO_SIDE=$(other_side "$SIDE")
    SIDE=$TO_SIDE GUEST_FROM=$VM GUEST_QEMU=(-incoming defer "$@")
    vm_begin
    TO=vm$VM_NUMBER
    SIDE=$from_side
}

# mover ARGUMENTS...: what vm_mover says is in MOVED.
# shellcheck disable=SC2153  # MOVER is the case's
mover() { MOVED=$("$MOVER" "$@" 2>"$SERVER_DIR/mover"); }

monitor() { printf '%s/%s.qmp' "$SERVER_DIR" "$1"; }

# vm_gone NAME: its QEMU is not needed any more.
vm_gone() {
    # shellcheck disable=SC2153  # set by guest.sh
    kill -KILL "${GUEST_PIDS[$1]}" 2>/dev/null || true
    wait "${GUEST_PIDS[$1]}" 2>/dev/null || true
    disown_pid "${GUEST_PIDS[$1]}"
}

# So many pages of a guest's memory QEMU itself may have lost in a move (docs/decisions/0010).
LOST=0

# memory_moved NAME: whether what the guest at TO, which has not run, remembers is what it knew; what QEMU lost the
# guest gets. Then it goes on.
memory_moved() {
    local found
    found=$("$MOVER" compare "${GUEST_PIDS[$VM]}" "${GUEST_PIDS[$TO]}" "$LOST") || found='{}'
    if [[ $(jq '.pages > 0 and .different == .mended' <<<"$found") == true ]]; then
        passed "$1-memory" "$(jq .pages <<<"$found") pages, $(jq .mended <<<"$found") lost by QEMU"
        [[ $(jq .mended <<<"$found") == 0 ]] || say "$GROUP: $1: QEMU lost pages: $found"
    else
        failed "$1-memory" "$found"
    fi
    "$MOVER" ask "$(monitor "$TO")" '{"execute":"cont"}' >/dev/null
}

# nobody_has NAME: while the guest waits, neither daemon has the image.
nobody_has() {
    if [[ $(side_shown "$TO_SIDE" locked) == false && $(side_shown "$SIDE" locked) == false ]]; then
        passed "$1"
    else
        failed "$1" 'a daemon has the image while no guest runs'
    fi
}

# move NAME [-S]: to the other daemon; with -S the memories are compared before the guest goes on.
move() {
    local name=$1
    shift
    move_begin "$@"
    announcements_begin "$TO_SIDE"
    if ! mover move "$(monitor "$VM")" "$(monitor "$TO")" "unix:$SERVER_DIR/$TO.move" downtime-limit=300 ||
        [[ $(jq -r .status <<<"$MOVED") != completed ]]; then
        failed "$name" "$MOVED $(tail -n 3 "$SERVER_DIR/mover" | tr '\n' ' ') $(tail -n 2 "$SERVER_DIR/$TO.qemu" | tr '\n' ' ')"
        return 1
    fi
    if (($#)); then
        nobody_has "$name-nobody"
        memory_moved "$name"
    fi
    announcements_end "$name-announced"
    vm_gone "$VM"
    VM=$TO SIDE=$TO_SIDE
    MOVES=$((MOVES + 1))
    DOWNTIMES+=" $(jq .downtime <<<"$MOVED")"
    # One that was told to go on has none.
    (($#)) || PAUSES+=" $(jq '(."resumed-us" - ."stopped-us") / 1000 | round' <<<"$MOVED")"
    TIMES+=" $(jq '."total-time"' <<<"$MOVED")"
}

# announcements_begin SIDE: listens at the host's side of that daemon for a frame that says where the guest
# is now: RARP, or ARP that asks for the address of him who asks.
announcements_begin() {
    local index
    index=$(in_namespace "$NET_HOST" cat "/sys/class/net/lan-$1/ifindex")
    # shellcheck disable=SC2016  # Perl's variables
    in_namespace "$NET_HOST" timeout 100 perl -MTime::HiRes=time -e '
        my ($mac, $index) = @ARGV;
        socket(my $socket, 17, 3, unpack("S", pack("n", 3))) or die "no socket: $!";
        $| = 1;
        print "listening\n";
        while (my $from = recv($socket, my $frame, 2048, 0)) {
            next unless (unpack("SSl", $from))[2] == $index;
            my $text = unpack("H*", $frame);
            next unless $text =~ /^ffffffffffff$mac(8035|0806)/;
            next if $1 eq "0806" and substr($text, 56, 8) ne substr($text, 76, 8);
            printf "%s %d\n", $text, time * 1000;
            last if $1 eq "8035";
        }' "$(nic_mac net | tr -d :)" "$index" >"$SERVER_DIR/announced" 2>&1 3>&- &
    LISTENER=$!
    own "$LISTENER"
    until grep -qs listening "$SERVER_DIR/announced" || ! alive "$LISTENER"; do sleep 0.02; done
}

announcements_end() {
    end_within 60 "$LISTENER" || true
    disown_pid "$LISTENER"
    # Before the guest itself has come to say anything, or so soon after it that the daemon has not waited for it:
    # its second announcement comes after 50 ms.
    local said late
    mapfile -t said < <(tail -n +2 "$SERVER_DIR/announced")
    ((${#said[@]})) || said=('')
    case ${said[-1]:24:4} in
        8035)
            late=$((${said[-1]##* } - ${said[0]##* }))
            if ((late <= 100)) || [[ -z $TEST_ALL ]]; then
                passed "$1" "RARP, $late ms after the first word of it"
            else
                failed "$1" "the guest itself was first, by $late ms"
            fi ;;
        *) failed "$1" "no RARP: ${said[-1]}" ;;
    esac
}
