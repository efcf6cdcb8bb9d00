# shellcheck shell=bash
# GROUP: kill -9 of the daemon, of the VMM and of both under load
# With --all thousands of deaths; without it, in some three minutes. Run by x.d/test.sh.
# shellcheck disable=SC2034  # variables here are read by x.d/guest.sh and x.d/server.sh

group_recover() {
    need_sidecore
    need_guests
    need_guest_image
    run_cases case_daemon_killed case_vmm_killed case_both_killed
}

# often DEFAULT ALL
often() { if [[ -n $TEST_ALL ]]; then printf '%s' "$2"; else printf '%s' "$1"; fi; }

# random_pause MOST_MS
random_pause() { sleep "$(printf '0.%03d' $((RANDOM % $1)))"; }

# Two queues, fio --verify in a file system; each kill comes while requests are being served.
case_daemon_killed() {
    only_sidecore_here || return 0
    local wanted boots seconds kills=0 boot=0 of_boot property
    wanted=$(often 20 1000) boots=$(often 2 10)
    # A kill takes one to two seconds, most of which QEMU waits before it connects again; the last
    # round of fio goes on for longer.
    seconds=$(often 6 150)
    server_disk a file 128M queues=2
    server_start
    # Split and packed rings in turn.
    while ((kills < wanted || boot < boots)); do
        boot=$((boot + 1))
        property=''
        ((boot % 2)) || property=,packed=on
        GUEST_WORDS=("arg.seconds=$seconds")
        guest_start "boot$boot" recover "a$property"
        guest_ready "boot$boot" fio 120
        of_boot=0
        until guest_said "boot$boot" '^READY done' || ! alive "${GUEST_PIDS[boot$boot]}"; do
            # What a guest asks for between two rounds of fio is little, but not for so long.
            if ! server_served a 15; then
                guest_said "boot$boot" '^READY done' && break
                failed "boot$boot-served" 'a restarted daemon has served nothing for a minute'
                return 1
            fi
            random_pause 500
            guest_said "boot$boot" '^READY done' && break
            server_kill
            of_boot=$((of_boot + 1))
        done
        GUEST_PREFIX="boot$boot${property:+-packed}-" guest_end "boot$boot" 120
        ((of_boot > 0)) || {
            failed kills "no kill fell into boot $boot"
            return 1
        }
        kills=$((kills + of_boot))
        say "recover/daemon-killed: boot $boot${property}: $of_boot kills, 0 errors in the guest ($kills of $wanted)"
    done
    passed kills "$kills kills in $boot boots"
}

# daemon_holds: its descriptors, and its mappings of a guest's memory.
daemon_holds() {
    # shellcheck disable=SC2012  # names are numbers
    printf '%d %d' "$(ls "/proc/$SERVER_PID/fd" | wc -l)" \
        "$(grep -c memfd: "/proc/$SERVER_PID/maps" || true)"
}

# The VMM goes; what it lent is given back within a second, and the next one is served.
case_vmm_killed() {
    only_sidecore_here || return 0
    local rounds round before='' after='' until_ms
    rounds=$(often 5 25)
    server_disk a file 128M queues=2
    server_start
    # Round 0 is for what the daemon makes once and keeps: a sidecore's io_uring.
    for ((round = 0; round <= rounds; round++)); do
        GUEST_WORDS=(arg.seconds=60)
        guest_start vmm recover a
        guest_ready vmm fio 120
        random_pause 999
        kill -KILL "${GUEST_PIDS[vmm]}"
        wait "${GUEST_PIDS[vmm]}" 2>/dev/null || true
        disown_pid "${GUEST_PIDS[vmm]}"
        until_ms=$(($(now_ms) + $(often 90000 1000)))
        if ((round == 0)); then
            # No memory of a guest is mapped; what is being closed is.
            before=$(daemon_holds)
            until [[ $before == *' 0' && $before == "$after" ]] || (($(now_ms) > until_ms)); do
                after=$before
                sleep 1
                before=$(daemon_holds)
            done
            [[ $before == *' 0' ]] || { failed round-0 "still $before"; return 1; }
        fi
        after=$(daemon_holds)
        while [[ $after != "$before" ]] && (($(now_ms) < until_ms)); do
            sleep 0.02
            after=$(daemon_holds)
        done
        if [[ $after != "$before" ]]; then
            failed "round-$round" "descriptors and mappings are $after later, not $before"
            return 1
        fi
    done
    passed given-back "$rounds times ($before descriptors and mappings)"
    GUEST_WORDS=(arg.seconds=3)
    guest_start next recover a
    guest_end next
}

# Both go at once, as when the host's operator ends everything. What the guest has synced is there, and the file system
# is whole after its journal was replayed: ext4 by the host's tools; with --all xfs and btrfs too, by the guest that boots next.
case_both_killed() {
    only_sidecore_here || return 0
    local rounds round said kind kinds=(ext4)
    rounds=$(often 3 102)
    if [[ -n $TEST_ALL ]]; then
        kinds=(ext4 xfs btrfs)
        file_system_image
        # shellcheck disable=SC2153  # set by run_case
        local INITRAMFS=$SERVER_DIR/initramfs.cpio
    fi
    for ((round = 1; round <= rounds; round++)); do
        kind=${kinds[round % ${#kinds[@]}]}
        server_begin "$SERVER_DIR"
        rm -f "$(disk_image a)"
        # The others make none that is smaller.
        server_disk a file "$([[ $kind == ext4 ]] && echo 128M || echo 320M)" queues=2
        server_start
        GUEST_WORDS=("arg.kind=$kind")
        guest_start both crash a
        guest_ready both files 120
        guest_ready both file-10 60
        random_pause 999
        if ((round % 2)); then
            kill -KILL "$SERVER_PID" "${GUEST_PIDS[both]}"
        else
            kill -KILL "${GUEST_PIDS[both]}" "$SERVER_PID"
        fi
        wait "$SERVER_PID" "${GUEST_PIDS[both]}" 2>/dev/null || true
        disown_pid "$SERVER_PID"
        disown_pid "${GUEST_PIDS[both]}"
        SERVER_PID=
        said=$(sed -n 's/^READY file-//p' "$SERVER_DIR/both.results" | tail -n 1)
        if [[ -n $TEST_ALL ]]; then
            server_start
            GUEST_WORDS=("arg.kind=$kind" "arg.last=$said")
            guest_start next crashed a
            GUEST_PREFIX="round-$round-$kind-" guest_end next || return 1
            server_stop || return 1
        else
            whole_on_host "round-$round" "$said" || return 1
        fi
    done
    passed fsck "clean $rounds times (${kinds[*]}), and what was synced was there"
}

# file_system_image: the guest with xfs and btrfs, in the case's folder.
file_system_image() {
    need_packages xfsprogs btrfs-progs
    local tree=$SERVER_DIR/tree program
    mkdir -p "$tree"/usr/{bin,sbin}
    for program in /usr/sbin/mkfs.xfs /usr/sbin/xfs_repair /usr/sbin/mkfs.btrfs /usr/bin/btrfs; do
        copy_program "$program" "$tree"
    done
    modules_apart "$tree" file-systems xfs btrfs
    image_with "$tree" "$SERVER_DIR/initramfs.cpio"
}

# whole_on_host NAME NUMBER: by the host's tools, of an ext4.
whole_on_host() {
    local found
    # Status 1: the journal was replayed.
    e2fsck -p "$(disk_image a)" >"$SERVER_DIR/fsck-p" 2>&1 || (($? == 1)) || {
        failed "$1-journal" "$(tail -n 3 "$SERVER_DIR/fsck-p" | tr '\n' ' ')"
        return 1
    }
    e2fsck -f -n "$(disk_image a)" >"$SERVER_DIR/fsck" 2>&1 || {
        failed "$1-fsck" "$(tail -n 3 "$SERVER_DIR/fsck" | tr '\n' ' ')"
        return 1
    }
    found=$(debugfs -R 'cat /last' "$(disk_image a)" 2>/dev/null)
    if [[ ! $found =~ ^[0-9]+$ ]] || ((found < $2)); then
        failed "$1-synced" "the guest had synced file $2, the disk has ${found:-none}"
        return 1
    fi
}

only_sidecore_here() {
    [[ $GUEST_SERVER != sidecore ]] || return 0
    skipped '' "recovery is tested of sidecore, not of $GUEST_SERVER"
    return 1
}
