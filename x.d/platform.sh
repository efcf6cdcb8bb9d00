# shellcheck shell=bash
# What a platform does to a guest that is at work: processors and memory that come, sleep, another kernel.
# The case is in x.d/test/guest.sh. Sourced by ./x.
#
#   platform_image FILE          the guest's initramfs with kexec, a kernel and a small initramfs for it
#   load_runs GUEST, load_over GUEST   rounds of fio --verify on /dev/vda, and that none of them found a fault
#   load_goes_on GUEST NAME      another round ends
#   other_kernel PATTERN         sets KERNEL and INITRAMFS: Debian's newest cloud kernel of that pattern

platform_image() {
    local tree=$SERVER_DIR/platform small=$SERVER_DIR/small kexec=$BUILD/guest/kexec
    # Its own package is not installed: it takes part in the host's shutdown.
    need_packages libxenmisc4.17
    [[ -x $kexec/sbin/kexec ]] || unpack_package kexec-tools "$kexec"
    (
        GUEST_PROGRAMS=()
        guest_tree "$small" "$BUILD/guest/kernel" virtio_pci virtio_blk
    )
    mkdir -p "$tree"/{sbin,next}
    pack_tree "$small" "$tree/next/initramfs"
    cp "$KERNEL" "$tree/next/vmlinuz"
    cp "$kexec/sbin/kexec" "$tree/sbin/kexec"
    copy_libraries "$kexec/sbin/kexec" "$tree"
    modules_apart "$tree" button button
    image_with "$tree" "$1"
}

# shellcheck disable=SC2016  # the guest's expressions
load_runs() {
    ask load-begins "$1" 'rm -f /tmp/over /tmp/bad /tmp/ended; echo 0 >/tmp/rounds
        { n=0; while [ ! -e /tmp/over ]; do
            fio --ioengine=libaio --direct=1 --filename=/dev/vda --name=load --rw=randwrite \
                --bssplit=512/5:4k/60:16k/20:64k/10:256k/5 --iodepth=32 --size=4m --offset_increment=8m --numjobs=2 \
                --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0 >/tmp/load.out 2>&1 ||
                { cp /tmp/load.out /tmp/bad; break; }
            n=$((n + 1)); echo $n >/tmp/rounds
        done; echo over >/tmp/ended; } >/dev/null 2>&1 &'
}

load_goes_on() {
    local before
    before=$(guest_do "$1" 'cat /tmp/rounds') || before=0
    ask "$2" "$1" "$(await_for 120 "[ -e /tmp/bad ] || [ \"\$(cat /tmp/rounds)\" -gt $((before + 1)) ]"); ! cat /tmp/bad 2>/dev/null"
}

load_over() {
    ask load-verified "$1" "touch /tmp/over; $(await_for 120 '[ -e /tmp/ended ]'); ! cat /tmp/bad 2>/dev/null"
}

# suspended_and_woken GUEST: all devices are frozen and brought back, which a driver does by a reset; the power button
# wakes it. (From S3 the firmware of an emulated machine with several processors does not come back.)
# shellcheck disable=SC2016  # the guest's expressions
suspended_and_woken() {
    local pid
    ask button-works "$1" 'while read -r module; do insmod "/button/$module" || exit 1; done </button/order'
    # Until it is awake again the guest takes no orders, and pressed too early a button wakes nobody.
    (
        while sleep 5; do
            printf '%s\n' '{"execute":"qmp_capabilities"}' '{"execute":"system_powerdown"}' |
                socat -t 5 - "UNIX-CONNECT:$SERVER_DIR/$1.qmp" || true
        done
    ) >/dev/null 2>&1 3>&- &
    pid=$!
    own_shell "$pid"
    DO_SECONDS=240 ask slept-and-woke "$1" 'before=$(cat /sys/power/suspend_stats/success)
        # A button that is pressed while devices are frozen calls it off.
        n=0; until echo freeze >/sys/power/state; do n=$((n + 1)); [ $n -lt 20 ] || exit 1; done
        [ "$(cat /sys/power/suspend_stats/success)" -gt "$before" ]'
    # Its sleep, too.
    pkill -P "$pid" 2>/dev/null || true
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    disown_pid "$pid"
}

other_kernel() {
    local package folder=$BUILD/guest/other
    mkdir -p "$folder"
    apt_lists
    package=$(apt-cache search --names-only "$1" | awk '{ print $1 }' | sort -V | tail -n 1)
    [[ -n $package ]] || { skipped '' "Debian has no package $1 here"; return 1; }
    if [[ $(cat "$folder/package" 2>/dev/null) != "$package" ]]; then
        unpack_package "$package" "$folder/kernel"
        printf '%s\n' "$package" >"$folder/package"
    fi
    KERNEL=$(echo "$folder"/kernel/boot/vmlinuz-*)
    INITRAMFS=$folder/initramfs.cpio
    # Called where an error ends nothing by itself.
    if ! guest_tree "$folder/tree" "$folder/kernel" "${GUEST_MODULES[@]}" || ! pack_tree "$folder/tree" "$INITRAMFS"; then
        die 'the initramfs of the other kernel could not be made' 'look at what is said above'
    fi
    say "guest: $package"
}
