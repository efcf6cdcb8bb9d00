# shellcheck shell=bash
# GROUP: power cuts, failing disks, and the host's syncs for each write cache mode of a real guest
# With --all 2,000 power cuts instead of 400, and 500 instead of 24 of a file system. Run by x.d/test.sh.
# shellcheck disable=SC2034  # variables here are read by x.d/guest.sh and x.d/server.sh

group_durable() {
    need_sidecore
    need_packages e2fsprogs util-linux mount
    if ((EUID != 0)) || [[ ! -e /dev/fuse ]]; then
        skipped power-cut 'needs root and /dev/fuse: the disk that loses power is a FUSE file'
        skipped failing-disk 'needs root and /dev/fuse: the disk that fails is a FUSE file'
    else
        durable_tests "POWER_CUTS=$(durable_often 400 2000)"
    fi
    need_guests
    need_guest_image
    run_cases case_write_back case_write_through case_no_choice case_mapper
    if ((EUID == 0)) && [[ -e /dev/fuse ]]; then
        cargo_quietly build --profile driver -p tests --bin power_disk
        run_cases case_file_system
    else
        skipped file-system 'needs root and /dev/fuse: the disk that loses power is a FUSE file'
    fi
}

# durable_often DEFAULT ALL
durable_often() { if [[ -n $TEST_ALL ]]; then printf '%s' "$2"; else printf '%s' "$1"; fi; }

# durable_tests VARIABLE=VALUE...: the modules of tests/tests/durable, and the table of syncs.
durable_tests() {
    local module
    for module in power_cut failing_disk no_space lost_sync unusable_disk; do
        [[ -z $CASES || " $CASES " == *" $module "* ]] || continue
        run_command "$module" env SIDECORE_BIN="$SIDECORE" "$@" \
            cargo test --profile driver -p tests --test durable -- "$module::" --nocapture || true
    done
    [[ ! -f $BUILD/test/$GROUP-power_cut.log ]] ||
        grep -E '^(mode|NoFlush|Flush|Write|Switching|seed|[0-9]+ power cuts)' \
            "$BUILD/test/$GROUP-power_cut.log" >&2 || true
}

# durable_disk: the disk `a`, on a loop device where that is possible, which counts flushes by itself.
durable_disk() {
    truncate -s 64M "$SERVER_DIR/images/a.raw"
    LOOP=''
    if ((EUID == 0)) && LOOP=$(losetup --show --find "$SERVER_DIR/images/a.raw" 2>"$SERVER_DIR/losetup"); then
        server_disk a file 64M "image=$LOOP"
    else
        LOOP=''
        server_disk a file 64M "image=$SERVER_DIR/images/a.raw"
    fi
    server_start
    # It goes when the daemon has closed it, whatever happens here.
    [[ -z $LOOP ]] || losetup -d "$LOOP"
}

# device_flushes: flushes that the loop device was asked for (Documentation/block/stat.rst).
device_flushes() { awk '{ print $16 }' "/sys/block/${LOOP#/dev/}/stat"; }

# durable_guest CACHE PROPERTIES: one boot; sets WRITES, FLUSHES, SYNCS and DEVICE.
durable_guest() {
    durable_disk
    GUEST_WORDS=("arg.cache=$1")
    local status=0 before=0
    [[ -z $LOOP ]] || before=$(device_flushes)
    guest_start one durable "a$2"
    guest_end one || status=1
    WRITES=$(disk_counter a writes)
    FLUSHES=$(disk_counter a flushes)
    SYNCS=$(sidecore_do show a --json | jq -r .faults.syncs)
    DEVICE=-
    if [[ -n $LOOP ]]; then
        DEVICE=$(($(device_flushes) - before))
    else
        skipped counted-by-the-device 'needs root and a loop device'
    fi
    say "durable/${CASE:-}: $WRITES writes and $FLUSHES flushes of the guest, $SYNCS syncs of the daemon, $DEVICE flushes at the device"
    return "$status"
}

# at_least NAME LEAST GOT, at_most NAME MOST GOT
at_least() { if (($3 >= $2)); then passed "$1" "$3"; else failed "$1" "$3, at least $2 are needed"; fi; }
at_most() { if (($3 <= $2)); then passed "$1" "$3"; else failed "$1" "$3, at most $2 are right"; fi; }

# 1,024 writes of fio, 64 of them between two fsyncs.
case_write_back() {
    durable_guest back '' || return 1
    at_least guest-flushes 16 "$FLUSHES"
    at_least host-syncs 16 "$SYNCS"
    at_most host-syncs-no-more "$FLUSHES" "$SYNCS"
    [[ $DEVICE == - ]] || at_least device-flushes 16 "$DEVICE"
}

# The guest has chosen write-through: it sends no flush, and up to 8 writes are in flight at once.
case_write_through() {
    durable_guest through '' || return 1
    at_least host-syncs "$((WRITES / 8))" "$SYNCS"
    [[ $DEVICE == - ]] || at_least device-flushes "$((WRITES / 8))" "$DEVICE"
}

# QEMU does not offer the choice: FLUSH alone, write back.
case_no_choice() {
    durable_guest back ',config-wce=off' || return 1
    at_least guest-flushes 16 "$FLUSHES"
    at_least host-syncs 16 "$SYNCS"
    [[ $DEVICE == - ]] || at_least device-flushes 16 "$DEVICE"
}

# A guest's ext4 and databases on a disk that loses power: what was synced is there, after every cut. Each boot gives
# a log of the disk in which the cuts are made. Past the page cache and through it, and with data in the journal too.
case_file_system() {
    local boots cuts seconds boot log=$SERVER_DIR/power.log pid cache options status
    boots=$(durable_often 1 10) cuts=$(durable_often 24 50) seconds=$(durable_often 8 20)
    for ((boot = 1; boot <= boots; boot++)); do
        cache=direct options=data=ordered
        ((boot % 2)) || cache=page
        ((boot % 3)) || options=data=journal
        server_begin "$SERVER_DIR"
        rm -f "$SERVER_DIR"/power.{over,results}
        setpriv --pdeathsig KILL "${CARGO_TARGET_DIR:-$ROOT/target}/driver/power_disk" "$SERVER_DIR/power.results" \
            "$SERVER_DIR/power.over" $((64 << 20)) "$cache" "$cuts" "${POWER_SEED:-$boot}" >"$log" 2>&1 3>&- &
        pid=$!
        own "$pid"
        until grep -q '^disk ' "$log"; do
            alive "$pid" || { failed "boot-$boot-disk" "$(tail -n 3 "$log" | tr '\n' ' ')"; return 1; }
            sleep 0.05
        done
        server_disk a file 64M "image=$(sed -n 's/^disk //p' "$log")" queues=2
        printf 'cache = "%s"\n' "$cache" >>"$SERVER_CONFIG"
        server_start
        GUEST_WORDS=("arg.seconds=$seconds" "arg.options=$options")
        guest_start power power a
        GUEST_PREFIX="boot-$boot-" guest_end power 180 || return 1
        server_stop || return 1
        touch "$SERVER_DIR/power.over"
        status=0
        end_within 600 "$pid" || status=$?
        disown_pid "$pid"
        if ((status == 0)); then
            passed "boot-$boot-cuts" "$(tail -n 1 "$log")"
            say "durable/file-system: $options, $(tail -n 1 "$log")"
        else
            failed "boot-$boot-cuts" "$(sed -n '/^Error/,/^Stack/p' "$log" | head -n 8 | tr '\n' ' ')"
            return 1
        fi
    done
}

# The daemon itself in the guest, on dm-flakey and dm-log-writes, which this host may not have. What
# it needs is a second part of the initramfs.
case_mapper() {
    need_packages dmsetup util-linux binutils cpio
    need_rust
    say 'durable/mapper: building the front-end for the guest'
    cargo_quietly build --release -p tests --bin dm_client
    local tree=$SERVER_DIR/tree program
    mkdir -p "$tree"/mapper "$tree"/usr/{bin,sbin}
    for program in /usr/sbin/dmsetup /usr/bin/setpriv; do
        copy_program "$program" "$tree"
    done
    stripped "$SIDECORE" sidecore "$tree"
    stripped "${CARGO_TARGET_DIR:-$ROOT/target}/release/dm_client" dm_client "$tree"
    modules_apart "$tree" mapper/modules dm-flakey dm-log-writes
    image_with "$tree" "$SERVER_DIR/initramfs.cpio"
    local INITRAMFS=$SERVER_DIR/initramfs.cpio
    server_disk data memory 64M
    server_disk log memory 64M
    server_start
    # dm-flakey makes the guest's own kernel complain: that is the case.
    GUEST_MAY_COMPLAIN=yes
    guest_start one mapper data log
    guest_end one 240
}

# stripped PROGRAM NAME TREE: as copy_program, without debug information, as TREE/mapper/NAME.
stripped() {
    local library
    strip -o "$3/mapper/$2" "$1"
    ldd "$1" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$3$(dirname "$library")"
        [[ -e $3$library ]] || cp -L "$library" "$3$library"
    done
}
