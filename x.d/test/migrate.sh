# shellcheck shell=bash
# GROUP: live migration between two daemons under load: back and forth, called off, with a death at each step (root)
# Two daemons, `a` and `b`, have one image; their switches are joined by a bridge. With --all two hundred
# moves. Run by x.d/test.sh.
# shellcheck disable=SC2034  # variables here are read by x.d/guest.sh and x.d/net.sh

group_migrate() {
    need_sidecore
    need_guests
    need_packages qemu-utils
    need_guest_image
    cargo_quietly build --profile driver -p tests --bin vm_mover
    MOVER=${CARGO_TARGET_DIR:-$ROOT/target}/driver/vm_mover
    # Guests wait more than they work; side by side they are done sooner.
    migrate_raw &
    local raw=$!
    own_shell "$raw"
    [[ -z $TEST_ALL ]] || wait "$raw" || true
    run_cases_together "$(migrate_often 3 1)" case_deaths case_moves case_called_off case_saved case_snapshot
    wait "$raw" || true
    disown_pid "$raw"
    # Beside QEMU's own devices; takes minutes.
    [[ -z $TEST_ALL && " $CASES " != *' pause '* ]] || run_cases case_pause
}

migrate_often() { if [[ -n $TEST_ALL ]]; then printf '%s' "$2"; else printf '%s' "$1"; fi; }

migrate_raw() {
    [[ -z $CASES || " $CASES " == *" migrate "* ]] || return 0
    run_command migrate env SIDECORE_BIN="$SIDECORE" "MIGRATE_ROUNDS=$(migrate_often 200 5000)" \
        "MIGRATE_STOPS=$(migrate_often 300 1000)" \
        cargo test --profile driver -p tests --test migrate -- --nocapture || true
    grep -E '^migrate: ' "$BUILD/test/$GROUP-migrate.log" >&2 || true
}

# Of the daemon that a guest is at.
SIDE=a
disk_socket() { printf '%s/%s/%s.sock' "$SERVER_DIR" "$SIDE" "$1"; }
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
    local side=$1 until_ms=$(($(now_ms) + 20000))
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
    local until_ms=$(($(now_ms) + 10000))
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
    local until_ms=$(($(now_ms) + 5000))
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
    local before now='' until_ms=$(($(now_ms) + 20000))
    before="$(stream_at "$VM" 7201) $(stream_at host 7202)"
    while (($(now_ms) < until_ms)); do
        sleep 0.2
        now="$(stream_at "$VM" 7201) $(stream_at host 7202)"
        if awk '{ exit !($3 > $1 && $4 > $2) }' <<<"$before $now"; then
            passed "$1"
            return 0
        fi
    done
    failed "$1" "in 20 s from '$before' to '$now'"
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
mover() { MOVED=$("$MOVER" "$@" 2>"$SERVER_DIR/mover"); }

monitor() { printf '%s/%s.qmp' "$SERVER_DIR" "$1"; }

# vm_gone NAME: its QEMU is not needed any more.
vm_gone() {
    # shellcheck disable=SC2153  # set by guest.sh
    kill -KILL "${GUEST_PIDS[$1]}" 2>/dev/null || true
    wait "${GUEST_PIDS[$1]}" 2>/dev/null || true
    disown_pid "${GUEST_PIDS[$1]}"
}

# move NAME [-S]: to the other daemon; with -S the memories are compared before the guest goes on.
move() {
    local name=$1 found
    shift
    move_begin "$@"
    announcements_begin "$TO_SIDE"
    if ! mover move "$(monitor "$VM")" "$(monitor "$TO")" "unix:$SERVER_DIR/$TO.move" downtime-limit=300 ||
        [[ $(jq -r .status <<<"$MOVED") != completed ]]; then
        failed "$name" "$MOVED $(tail -n 3 "$SERVER_DIR/mover" | tr '\n' ' ') $(tail -n 2 "$SERVER_DIR/$TO.qemu" | tr '\n' ' ')"
        return 1
    fi
    if (($#)); then
        # Nobody has it while it waits.
        if [[ $(side_shown "$TO_SIDE" locked) == false && $(side_shown "$SIDE" locked) == false ]]; then
            passed "$name-nobody"
        else
            failed "$name-nobody" 'a daemon has the image while no guest runs'
        fi
        found=$("$MOVER" compare "${GUEST_PIDS[$VM]}" "${GUEST_PIDS[$TO]}") || found='{}'
        if [[ $(jq '.different == 0 and .pages > 0' <<<"$found") == true ]]; then
            passed "$name-memory" "$(jq .pages <<<"$found") pages are alike"
        else
            failed "$name-memory" "$found"
        fi
        "$MOVER" ask "$(monitor "$TO")" '{"execute":"cont"}' >/dev/null
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
    end_within 10 "$LISTENER" || true
    disown_pid "$LISTENER"
    # Before the guest itself has come to say anything, or so soon after it that the daemon has not waited for it:
    # its second announcement comes after 50 ms.
    local said late
    mapfile -t said < <(tail -n +2 "$SERVER_DIR/announced")
    ((${#said[@]})) || said=('')
    case ${said[-1]:24:4} in
        8035)
            late=$((${said[-1]##* } - ${said[0]##* }))
            if ((late <= 100)); then
                passed "$1" "RARP, $late ms after the first word of it"
            else
                failed "$1" "the guest itself was first, by $late ms"
            fi ;;
        *) failed "$1" "no RARP: ${said[-1]}" ;;
    esac
}

# Back and forth; split rings, then packed ones.
case_moves() {
    only_root || return 0
    local property wanted at report
    wanted=$(migrate_often 2 100)
    two_daemons
    MOVES=0 DOWNTIMES='' PAUSES='' TIMES=''
    for property in '' ,packed=on; do
        vm_boot "$property"
        for ((at = 1; at <= wanted; at++)); do
            if ((at % 10 == 2)); then
                move "move-$at$property" -S
            else
                move "move-$at$property"
            fi
            streams_moved "streams-$at$property"
            # At the move that it came of, not at the end.
            guest_do "$VM" 'test ! -e /tmp/bad' >/dev/null || break
        done
        vm_over "${property:+packed-}"
    done
    report=$(moves_report "$wanted")
    printf '%s\n' "$report" >"$BUILD/test/migrate-moves.json"
    passed moves "$report"
    say "migrate: $report"
}

# moves_report WANTED: what came of the moves of each ring format: those that were made, failed checks by kind,
# and times, as JSON. Each move that does not converge is a failed check too.
moves_report() {
    local kind counts=()
    # Data that is not as it was written, memory that differs, lines or connections that are lost.
    for kind in verify fsck memory lines load streams; do
        counts+=("$kind=$(grep -cE $'^fail\tmoves/[^\t]*'"$kind" "$OUTCOMES" || true)")
    done
    # shellcheck disable=SC2086  # lists of numbers
    jq -cn --argjson wanted "$((2 * $1))" --argjson moved "$MOVES" --arg failed "${counts[*]}" \
        --argjson compared "$(grep -cE $'^pass\tmoves/[^\t]*memory' "$OUTCOMES" || true)" \
        --argjson pause "$(spread ${PAUSES:-0})" --argjson downtime "$(spread ${DOWNTIMES:-0})" \
        --argjson total "$(spread ${TIMES:-0})" \
        '{ wanted: $wanted, moved: $moved, memory_compared: $compared, failed: $failed,
           pause_ms: $pause, downtime_ms: $downtime, total_ms: $total }'
}

# not_moved NAME PHASE COMMAND: a migration in whose PHASE that is done does not take place; the guest goes on
# where it is.
not_moved() {
    local status
    move_begin
    # Slowly, so that there is a moment for it.
    if ! mover move "$(monitor "$VM")" "$(monitor "$TO")" "unix:$SERVER_DIR/$TO.move" \
        max-bandwidth=50000000 downtime-limit=300 "$2" "${3//TO_PID/${GUEST_PIDS[$TO]}}"; then
        failed "$1" "$(tail -n 3 "$SERVER_DIR/mover" | tr '\n' ' ')"
    fi
    status=$(jq -r .status <<<"$MOVED")
    vm_gone "$TO"
    # Some versions say `completed` of what nobody received.
    if [[ $status == cancelled || $status == failed ]]; then
        passed "$1"
    else
        failed "$1" "$MOVED"
    fi
    streams_moved "$1-streams"
    one_writer "$1-writer"
}

# Cancelled in each phase, and the destination's QEMU killed.
case_called_off() {
    only_root || return 0
    local phase round
    two_daemons
    vm_boot ''
    for ((round = 0; round < $(migrate_often 1 5); round++)); do
        for phase in setup active late switchover; do
            not_moved "cancel-$phase" "$phase" cancel
        done
        for phase in $(migrate_often 'active switchover' 'setup active late switchover'); do
            not_moved "kill-$phase" "$phase" 'kill -KILL TO_PID'
        done
    done
    MOVES=0
    move afterwards
    vm_over ''
}

# mover_with COMMAND ARGUMENTS...: the command is done here in the phase that ends the arguments; the migration's
# monitor is left alone meanwhile, so a phase that QEMU waits in lasts as long.
mover_with() {
    local command=$1 signal=$SERVER_DIR/phase pid status=0
    shift
    rm -f "$signal" "$signal.over"
    "$MOVER" move "$(monitor "$VM")" "$(monitor "$TO")" "unix:$SERVER_DIR/$TO.move" downtime-limit=300 "$@" \
        "touch $signal; until [ -e $signal.over ]; do sleep 0.02; done" >"$SERVER_DIR/moved" 2>"$SERVER_DIR/mover" 3>&- &
    pid=$!
    own "$pid"
    until [[ -e $signal ]] || ! alive "$pid"; do sleep 0.02; done
    "$command"
    touch "$signal.over"
    end_within 100 "$pid" || status=$?
    disown_pid "$pid"
    MOVED=$(cat "$SERVER_DIR/moved")
    return "$status"
}

# moved_to NAME: the guest is at TO, and was nowhere else.
moved_to() {
    if [[ $(jq -r .status <<<"$MOVED") != completed ]]; then
        failed "$1" "$MOVED $(tail -n 3 "$SERVER_DIR/mover" | tr '\n' ' ')"
        return 1
    fi
    passed "$1"
    vm_gone "$VM"
    VM=$TO SIDE=$TO_SIDE
}

source_restarts() {
    side_kill "$SIDE"
    side_start "$SIDE"
    # QEMU connects again after a second, and its requests are done; then it may go on. While its NIC has
    # no back-end QEMU says that the cable is out, and takes that along.
    [[ $PHASE != active ]] || side_locked "$SIDE" 10
    local until_ms=$(($(now_ms) + 10000))
    until [[ $("$SIDECORE" --api "$SERVER_DIR/$SIDE/api.sock" nic show net --json | jq -r .state) != waiting ]]; do
        (($(now_ms) < until_ms)) || return 0
        sleep 0.05
    done
    # Of the connection, not of what it says.
    sleep 0.3
}

# side_locked SIDE SECONDS: until its daemon has the image.
side_locked() {
    local until_ms=$(($(now_ms) + $2 * 1000))
    until [[ $(side_shown "$1" locked) == true ]]; do
        (($(now_ms) < until_ms)) || return 0
        sleep 0.05
    done
}

destination_dies() { side_kill "$TO_SIDE"; }

# A daemon dies in the middle: the guest goes on, at one of both, without an error.
case_deaths() {
    only_root || return 0
    local round
    two_daemons
    vm_boot ''
    for ((round = 0; round < $(migrate_often 1 5); round++)); do
        for PHASE in active switchover; do
            # QEMU 7.2 does not connect again to the back-end of a disk that it has not started: who sees
            # the daemon die calls the migration off.
            not_moved "destination-$PHASE" "$PHASE" "kill -KILL ${SIDE_PIDS[$(other_side "$SIDE")]}; kill -KILL TO_PID"
            side_kill "$(other_side "$SIDE")"
            side_start "$(other_side "$SIDE")"
            bridged
            move_begin
            mover_with source_restarts max-bandwidth=30000000 "$PHASE" || true
            bridged
            moved_to "source-$PHASE"
            streams_moved "source-$PHASE-streams"
            one_writer "source-$PHASE-writer"
        done
        # Nobody sees it: the guest waits at a disk that is not there, until it is moved on.
        move_begin
        mover_with destination_dies switchover || true
        moved_to destination-dead
        side_start "$SIDE"
        bridged
        MOVES=0
        move destination-dead-back
        streams_moved destination-dead-streams
        one_writer destination-dead-writer
    done
    vm_over ''
}

# vm_runs: what is written to its serial port before would be lost.
vm_runs() {
    local until_ms=$(($(now_ms) + 30000))
    until [[ $("$MOVER" ask "$(monitor "$VM")" '{"execute":"query-status"}' | jq -r .status) == running ]]; do
        (($(now_ms) < until_ms)) || { failed "$VM-runs" 'it does not'; return 1; }
        sleep 0.05
    done
}

# To a file; the daemon is another when the guest comes out of it, and it waits to be told to go on.
case_saved() {
    only_root || return 0
    two_daemons
    vm_boot ''
    if ! mover move "$(monitor "$VM")" - "exec:cat >$SERVER_DIR/saved" ||
        [[ $(jq -r .status <<<"$MOVED") != completed ]]; then
        failed save "$MOVED $(tail -n 3 "$SERVER_DIR/mover" | tr '\n' ' ')"
        return 1
    fi
    local was=$VM
    vm_gone "$VM"
    side_kill a
    side_start a
    GUEST_FROM=$was GUEST_QEMU=(-incoming "exec:cat $SERVER_DIR/saved" -S)
    vm_begin
    VM=vm$VM_NUMBER
    "$MOVER" ask "$(monitor "$VM")" '{"execute":"cont"}' >/dev/null
    vm_runs
    streams_moved restored-streams
    # The same once more, at the other daemon.
    mover move "$(monitor "$VM")" - "exec:cat >$SERVER_DIR/saved" || true
    was=$VM
    vm_gone "$VM"
    SIDE=b GUEST_FROM=$was GUEST_QEMU=(-incoming "exec:cat $SERVER_DIR/saved")
    vm_begin
    VM=vm$VM_NUMBER
    vm_runs
    streams_moved restored-elsewhere-streams
    vm_over ''
}

# job NAME JSON: a job of QEMU's, to its end.
job() {
    local state='' until_ms=$(($(now_ms) + 60000))
    "$MOVER" ask "$(monitor "$VM")" "$2" >/dev/null
    until [[ $(jq -r .status <<<"$state") == concluded ]]; do
        (($(now_ms) < until_ms)) || break
        sleep 0.05
        state=$("$MOVER" ask "$(monitor "$VM")" '{"execute":"query-jobs"}' | jq -c '.[0]')
    done
    if [[ $(jq -r '.status + (.error // "")' <<<"$state") == concluded ]]; then
        passed "$1"
    else
        failed "$1" "$state"
        return 1
    fi
    "$MOVER" ask "$(monitor "$VM")" '{"execute":"job-dismiss","arguments":{"id":"job"}}' >/dev/null
}

# A snapshot of memory and devices (what `savevm` makes), and a copy of the image at that moment, when nobody has
# it; the guest goes on. Then back to it, in another QEMU at the other daemon.
case_snapshot() {
    only_root || return 0
    local was arguments='"job-id":"job","tag":"then","vmstate":"state","devices":["state"]'
    two_daemons
    qemu-img create -q -f qcow2 "$SERVER_DIR/state.qcow2" 64M
    # shellcheck disable=SC2054  # the commas are QEMU's
    VM_MORE=(-blockdev "driver=qcow2,node-name=state,file.driver=file,file.filename=$SERVER_DIR/state.qcow2")
    vm_boot ''
    "$MOVER" ask "$(monitor "$VM")" '{"execute":"stop"}' >/dev/null
    if [[ $(side_shown a locked) == false ]]; then
        passed stopped-nobody
    else
        failed stopped-nobody 'the daemon has the image of a guest that is stopped'
    fi
    job snapshot-save "{\"execute\":\"snapshot-save\",\"arguments\":{$arguments}}"
    cp --sparse=always "$(disk_image root)" "$SERVER_DIR/root.then"
    "$MOVER" ask "$(monitor "$VM")" '{"execute":"cont"}' >/dev/null
    streams_moved goes-on-streams
    one_writer goes-on-writer
    guest_do "$VM" 'echo later >/mnt/later; sync' >&2
    was=$VM
    vm_gone "$VM"
    # A daemon whose guest is gone lets go in a moment.
    local until_ms=$(($(now_ms) + 10000))
    until [[ $(side_shown a locked) == false ]] || (($(now_ms) > until_ms)); do sleep 0.02; done
    cp --sparse=always "$SERVER_DIR/root.then" "$(disk_image root)"
    SIDE=b GUEST_FROM=$was GUEST_QEMU=(-S)
    vm_begin
    VM=vm$VM_NUMBER
    job snapshot-load "{\"execute\":\"snapshot-load\",\"arguments\":{$arguments}}"
    "$MOVER" ask "$(monitor "$VM")" '{"execute":"cont"}' >/dev/null
    vm_runs
    ask back-then "$VM" '[ ! -e /mnt/later ]'
    ask back-network "$VM" "$(await_for 20 'ping -c 1 -W 1 10.9.0.100')"
    guest_do "$VM" 'touch /tmp/stop' || true
    DO_SECONDS=90 ask back-verify "$VM" "$(await_for 80 'test -e /tmp/over'); [ ! -e /tmp/bad ] || { cat /tmp/verify.out /tmp/bad /tmp/verify.err; exit 1; }"
    one_writer back-writer
    ask back-fsck "$VM" 'umount /mnt && e2fsck -f -n /dev/vda'
    guest_over "$VM"
}

# gap_begin, gap_end: the longest time, in ms, in which the guest answered none of a hundred pings a second.
gap_begin() {
    # Not by a function: what is signalled is ping itself.
    ip netns exec "$NET_HOST" ping -D -n -i 0.01 10.9.0.1 >"$SERVER_DIR/pings" 2>&1 3>&- &
    PINGS=$!
    own "$PINGS"
}

gap_end() {
    kill -INT "$PINGS"
    end_within 5 "$PINGS" || true
    disown_pid "$PINGS"
    # A line may be cut where ping was ended.
    awk '/^\[[0-9.]+\] .*bytes from/ { at = substr($1, 2) + 0; gap = at - last
            if (last && gap > most && gap < 100) most = gap; last = at }
        END { printf "%d", most * 1000 }' "$SERVER_DIR/pings"
}

# spread NUMBERS...: as JSON: the median, the least and the most, and what 99 of 100 are not over.
spread() {
    printf '%s\n' "$@" | sort -n |
        jq -cs '{ median: .[length / 2 | floor], p99: .[length * 0.99 | ceil - 1], least: .[0], most: .[-1], all: . }'
}

# How long the guest stands still, beside the same guest with QEMU's own disk and NIC on the same image and
# bridge: its processors, and what the network sees, which are judged; and what QEMU calls downtime. In turns, so
# that the machine's other work is both's.
case_pause() {
    only_root || return 0
    local round at wanted rounds report gap
    local -A downtimes=() pauses=() gaps=()
    wanted=$(migrate_often 4 10) rounds=2
    two_daemons
    for ((round = 0; round < rounds; round++)); do
        for DEVICES in sidecore qemu; do
            DOWNTIMES='' PAUSES='' MOVES=0 TIMES='' SIDE=a
            vm_boot ''
            for ((at = 0; at < wanted; at++)); do
                gap_begin
                sleep 1
                move "$DEVICES-$round-$at"
                sleep 1
                gap=$(gap_end)
                gaps[$DEVICES]+=" $gap"
                passed "$DEVICES-$round-$at-times" "ms: gap $gap, pause ${PAUSES##* }, downtime ${DOWNTIMES##* }"
            done
            downtimes[$DEVICES]+=$DOWNTIMES
            pauses[$DEVICES]+=$PAUSES
            vm_over "$DEVICES-$round-"
        done
    done
    # shellcheck disable=SC2086  # lists of numbers
    report=$(jq -cn --argjson a "$(spread ${downtimes[sidecore]})" --argjson b "$(spread ${downtimes[qemu]})" \
        --argjson c "$(spread ${gaps[sidecore]})" --argjson d "$(spread ${gaps[qemu]})" \
        --argjson e "$(spread ${pauses[sidecore]})" --argjson f "$(spread ${pauses[qemu]})" \
        '{ "migrate.pause_ms": { sidecore: $e, qemu: $f }, "migrate.gap_ms": { sidecore: $c, qemu: $d },
           "migrate.downtime_ms": { sidecore: $a, qemu: $b } }')
    printf '%s\n' "$report" >"$BUILD/test/migrate.json"
    say "migrate: $report"
    if [[ $(jq '[."migrate.pause_ms", ."migrate.gap_ms"] | all(.sidecore.median <= 1.2 * .qemu.median)' <<<"$report") == true ]]; then
        passed pause "$report"
    else
        failed pause "over 20% more than QEMU's own: $report"
    fi
}
