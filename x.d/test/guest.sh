# shellcheck shell=bash
# GROUP: real guests (stock Debian kernel in QEMU) on disks of the daemon
# A case is a function; what it says in a guest is in tests/guest/scripts. Run by x.d/test.sh.
# shellcheck disable=SC2034  # variables here are read by x.d/guest.sh and x.d/server.sh

group_guest() {
    need_guests
    need_guest_image
    [[ $GUEST_SERVER == sidecore ]] || say "disks are served by $GUEST_SERVER (GUEST_SERVER)"
    [[ $GUEST_SERVER != sidecore ]] || need_sidecore
    run_cases case_fio case_fio_memory case_ext4 case_dd case_resize case_hotplug case_readonly \
        case_queues_64 case_packed case_discard case_identity case_block_size case_two_guests \
        case_pasted case_platform case_kernel_6_12
}

# only_sidecore WHY: the rest of the case is skipped with another server.
only_sidecore() {
    [[ $GUEST_SERVER != sidecore ]] || return 0
    skipped '' "$GUEST_SERVER $1"
    return 1
}

case_fio() {
    server_disk a file 256M queues=2
    server_start
    guest_start one fio a
    guest_end one
}

case_fio_memory() {
    server_disk a memory 256M queues=2
    server_start
    guest_start one fio a
    guest_end one
}

case_ext4() {
    server_disk a file 512M
    server_start
    guest_start one ext4 a
    guest_end one
    # The host's own tools, on the image that the guest has left.
    if e2fsck -f -n "$(disk_image a)" >"$SERVER_DIR/fsck" 2>&1; then
        passed fsck-on-host
    else
        failed fsck-on-host "$(tail -n 3 "$SERVER_DIR/fsck" | tr '\n' ' ')"
    fi
}

case_dd() {
    # Not zeroes: each block is different.
    dd if=/dev/urandom of="$(disk_image a)" bs=1M count=1024 status=none
    server_disk a file 1G readonly=1
    server_disk b memory 1G
    server_start
    GUEST_WORDS=("arg.cksum=$(cksum <"$(disk_image a)" | cut -d' ' -f1)")
    guest_start one dd a b
    guest_end one 300
}

case_resize() {
    only_sidecore 'has no command to resize an export' || return 0
    server_start
    sidecore_do disk add grown --backend memory --size 64M >"$SERVER_DIR/add"
    DISK_QUEUES['grown']=1
    GUEST_WORDS=("arg.before=$((64 * 2048))" "arg.after=$((96 * 2048))")
    guest_start one resize grown
    guest_ready one resize
    sidecore_do disk resize grown 96M >"$SERVER_DIR/resize"
    guest_end one
}

case_hotplug() {
    server_disk a file 64M
    server_disk b memory 64M
    server_start
    GUEST_QEMU=(-device 'pcie-root-port,id=slot1,chassis=1,slot=1')
    guest_start one hotplug a
    guest_ready one plug
    plug_b
    guest_ready one unplug
    qmp one '{"execute":"device_del","arguments":{"id":"plugged"}}'
    guest_ready one plug-again
    qmp_until one '{"execute":"chardev-remove","arguments":{"id":"plug"}}' "'plug' is busy"
    plug_b
    guest_end one
}

plug_b() {
    qmp one "$(jq -cn --arg path "$(disk_socket b)" '{execute: "chardev-add", arguments: {id: "plug",
        backend: {type: "socket", data: {addr: {type: "unix", data: {path: $path}},
        server: false, reconnect: 1}}}}')"
    qmp one '{"execute":"device_add","arguments":{"driver":"vhost-user-blk-pci","id":"plugged",
        "chardev":"plug","num-queues":1,"bus":"slot1"}}'
}

# What `--print qemu` says is pasted into a shell as it is.
case_pasted() {
    only_sidecore 'prints no arguments' || return 0
    server_start
    GUEST_PASTED=$(sidecore_do disk add pasted --path "$(disk_image pasted)" --size 64M --queues 2 \
        --memory 512M --print qemu 2>"$SERVER_DIR/add")
    GUEST_WORDS=("arg.sectors=$((64 * 2048))" arg.serial=pasted arg.wce=1)
    guest_start one identity
    guest_end one
}

case_readonly() {
    server_disk a file 64M readonly=1
    server_start
    local before
    before=$(cksum <"$(disk_image a)")
    # The kernel complains of the write that it refuses; that is the case.
    GUEST_MAY_COMPLAIN=yes
    guest_start one readonly a
    guest_end one
    if [[ $before == "$(cksum <"$(disk_image a)")" ]]; then
        passed image-unchanged
    else
        failed image-unchanged 'the image on the host is different now'
    fi
}

# Linux takes no more queues than it may have CPUs: 64 it may have, of which some are there.
case_queues_64() {
    server_disk a memory 128M queues=64
    server_start
    GUEST_SMP='4,maxcpus=64'
    GUEST_WORDS=(arg.queues=64 arg.jobs=4)
    guest_start one queues a
    guest_end one
}

case_packed() {
    only_sidecore 'has no packed rings' || return 0
    server_disk a file 256M queues=2
    server_start
    guest_start one fio a,packed=on
    guest_ready one fio
    local formats
    formats=$(sidecore_do show a --json | jq -c '[.queues[].format] | unique')
    guest_end one
    if [[ $formats == '["packed"]' ]]; then
        passed ring-format
    else
        failed ring-format "wanted [\"packed\"], got $formats"
    fi
}

case_discard() {
    server_disk a file 64M
    server_start
    guest_start one discard a
    guest_end one
    # After fstrim the image holds little more than the file system's own blocks.
    local held_kib
    held_kib=$(du -k "$(disk_image a)" | cut -f1)
    if ((held_kib < 16384)); then
        passed blocks-given-back "$held_kib KiB held"
    else
        failed blocks-given-back "the image still holds $held_kib KiB after fstrim"
    fi
    [[ $GUEST_SERVER == sidecore ]] || return 0
    local discards
    discards=$(disk_counter a discards)
    if ((discards > 0)); then passed counted; else failed counted "counter discards is $discards"; fi
}

case_identity() {
    server_disk a memory 64M serial=SIDECORE-TEST-0001
    server_start
    GUEST_WORDS=("arg.sectors=$((64 * 2048))")
    # Neither can be had from qemu-storage-daemon.
    [[ $GUEST_SERVER != sidecore ]] || GUEST_WORDS+=(arg.serial=SIDECORE-TEST-0001 arg.wce=1)
    guest_start one identity a
    guest_end one
}

# The partition table is made as on a disk with sectors of 4,096 bytes: read with 512, there is none.
case_block_size() {
    only_sidecore 'is not told of block sizes here' || return 0
    local image loop
    need_packages fdisk
    image=$(disk_image a)
    truncate -s 64M "$image"
    if ((EUID != 0)) || ! loop=$(losetup --show --find --sector-size 4096 "$image" 2>/dev/null); then
        skipped block-size 'needs root and loop devices with sectors of 4,096 bytes'
        return 0
    fi
    printf 'label: gpt\nstart=1024, size=8192\n' | sfdisk --quiet "$loop" >/dev/null
    losetup -d "$loop"
    server_disk a file 64M block_size=4096
    server_start
    GUEST_WORDS=("arg.first=$((1024 * 8))" "arg.size=$((8192 * 8))")
    guest_start one block_size a
    guest_end one
}

case_two_guests() {
    server_disk a memory 192M queues=2
    server_disk b file 192M queues=2
    server_start
    guest_start one together a
    guest_start two together b
    both_at_once one two 120
    GUEST_PREFIX=one- guest_end one 180
    GUEST_PREFIX=two- guest_end two 180
}

# A processor and memory come, the machine sleeps and wakes, all while every block is verified; then another kernel
# takes the disk over from one that is at work.
# shellcheck disable=SC2016  # the guest's expressions
case_platform() {
    platform_image "$SERVER_DIR/platform.cpio"
    server_disk a file 64M
    server_start
    GUEST_SMP='2,maxcpus=3,sockets=3,cores=1,threads=1'
    GUEST_QEMU=(-m 'size=512M,slots=1,maxmem=1G')
    INITRAMFS=$SERVER_DIR/platform.cpio guest_start one orders a
    guest_ready one orders
    load_runs one
    load_goes_on one load-before
    qmp one "$(jq -cn --arg type "$(guest_cpu)-x86_64-cpu" '{execute: "device_add", arguments: {driver: $type, id: "cpu2",
        "socket-id": 2, "core-id": 0, "thread-id": 0}}')"
    ask processor-came one "$(await_for 60 '[ -d /sys/devices/system/cpu/cpu2 ]')
        [ \"\$(cat /sys/devices/system/cpu/cpu2/online)\" = 1 ] || echo 1 >/sys/devices/system/cpu/cpu2/online"
    load_goes_on one load-with-processor
    qmp one '{"execute":"object-add","arguments":{"qom-type":"memory-backend-memfd","id":"more","size":268435456,"share":true}}'
    qmp one '{"execute":"device_add","arguments":{"driver":"pc-dimm","id":"dimm","memdev":"more"}}'
    ask memory-came one "$(await_for 60 'dmesg >/dev/null; for m in /sys/devices/system/memory/memory*; do
            grep -q offline $m/state && echo online_movable >$m/state 2>/dev/null; done
            [ "$(awk "/MemTotal/ { print int(\$2 / 1024) }" /proc/meminfo)" -gt 600 ]')"
    load_goes_on one load-with-memory
    suspended_and_woken one
    load_goes_on one load-after-sleep
    load_over one
    ask no-complaint one '! dmesg | grep -E "I/O error|Kernel panic|Oops|BUG:|blocked for more than"'
    # The driver of the kernel that leaves breaks its device with requests in flight, and says so.
    GUEST_MAY_COMPLAIN=yes
    load_runs one
    load_goes_on one load-before-kexec
    ask kexec-loaded one "/sbin/kexec -l /next/vmlinuz --initrd=/next/initramfs --command-line='$(boot_words run=firmware arg.disk=1)'"
    guest_do one '( sleep 1; /sbin/kexec -e ) >/dev/null 2>&1 &' >&2 || true
    guest_end one 600
}

guest_cpu() { if [[ $(accelerator) == kvm ]]; then printf host; else printf max; fi; }

case_kernel_6_12() {
    other_kernel '^linux-image-6\.12\..*-cloud-amd64(-unsigned)?$' || return 0
    server_disk a file 256M queues=2
    server_disk b file 256M queues=2
    server_start
    guest_start one fio a
    guest_end one
    only_sidecore 'has no packed rings' || return 0
    guest_start packed fio b,packed=on
    GUEST_PREFIX=packed- guest_end packed
}
