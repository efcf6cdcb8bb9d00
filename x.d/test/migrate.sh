# shellcheck shell=bash
# GROUP: live migration between two daemons under load: back and forth, called off, with a death at each step (root)
# Two daemons, `a` and `b`, have one image; their switches are joined by a bridge. With --all two hundred
# moves. Run by x.d/test.sh.
# shellcheck disable=SC2034  # variables here are read by x.d/guest.sh and x.d/net.sh

# Of the daemon that a guest is at.
SIDE=a
disk_socket() { printf '%s/%s/%s.sock' "$SERVER_DIR" "$SIDE" "$1"; }

group_migrate() {
    need_sidecore
    need_guests
    need_packages qemu-utils
    need_guest_image
    MOVER=${CARGO_TARGET_DIR:-$ROOT/target}/debug/vm_mover
    run_cases case_deaths case_moves case_called_off case_saved case_snapshot
    # Beside QEMU's own devices; takes minutes.
    [[ " $CASES " != *' pause '* ]] || run_cases case_pause
}

migrate_often() { if [[ -n $TEST_ALL ]]; then printf '%s' "$2"; else printf '%s' "$1"; fi; }

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
    printf '%s\n' "$report" >"$TEST_DIR/migrate-moves.json"
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

# moved_to NAME: the guest waits at TO and was nowhere else; now it runs there.
moved_to() {
    if [[ $(jq -r .status <<<"$MOVED") != completed ]]; then
        failed "$1" "$MOVED $(tail -n 3 "$SERVER_DIR/mover" | tr '\n' ' ')"
        return 1
    fi
    passed "$1"
    memory_moved "$1"
    vm_gone "$VM"
    VM=$TO SIDE=$TO_SIDE
}

source_restarts() {
    side_kill "$SIDE"
    side_start "$SIDE"
    # QEMU connects again after a second, and its requests are done; then it may go on. While its NIC has
    # no back-end QEMU says that the cable is out, and takes that along.
    [[ $PHASE != active ]] || side_locked "$SIDE" 10
    local until_ms=$(($(now_ms) + 90000))
    until [[ $("$SIDECORE" --api "$SERVER_DIR/$SIDE/api.sock" nic show net --json | jq -r .state) != waiting ]]; do
        (($(now_ms) < until_ms)) || return 0
        sleep 0.05
    done
    # Of the connection, not of what it says.
    sleep 0.3
}

# side_locked SIDE SECONDS: until its daemon has the image.
side_locked() {
    local until_ms=$(($(now_ms) + ($2 < 60 ? 60 : $2) * 1000))
    until [[ $(side_shown "$1" locked) == true ]]; do
        (($(now_ms) < until_ms)) || return 0
        sleep 0.05
    done
}

destination_dies() { side_kill "$TO_SIDE"; }

# A daemon dies in the middle: the guest goes on, at one of both, without an error.
case_deaths() {
    only_root || return 0
    local round LOST=0 slow
    # Its daemon is away for seconds while it works: the more of QEMU's passes over its memory, the more are lost.
    [[ $(accelerator) != tcg* ]] || LOST=16
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
            move_begin -S
            slow=()
            [[ $PHASE == switchover ]] || slow=(max-bandwidth=30000000)
            mover_with source_restarts "${slow[@]}" "$PHASE" || true
            bridged
            moved_to "source-$PHASE"
            streams_moved "source-$PHASE-streams"
            one_writer "source-$PHASE-writer"
        done
        # Nobody sees it: the guest waits at a disk that is not there, until it is moved on.
        move_begin -S
        mover_with destination_dies switchover || true
        moved_to destination-dead
        side_start "$SIDE"
        bridged
        MOVES=0
        move destination-dead-back -S
        streams_moved destination-dead-streams
        one_writer destination-dead-writer
    done
    vm_over ''
}

# vm_runs: what is written to its serial port before would be lost.
vm_runs() {
    local until_ms=$(($(now_ms) + 90000))
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
    local until_ms=$(($(now_ms) + 90000))
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
    printf '%s\n' "$report" >"$TEST_DIR/migrate.json"
    say "migrate: $report"
    if [[ $(jq '[."migrate.pause_ms", ."migrate.gap_ms"] | all(.sidecore.median <= 1.2 * .qemu.median)' <<<"$report") == true ]]; then
        passed pause "$report"
    else
        failed pause "over 20% more than QEMU's own: $report"
    fi
}
