# shellcheck shell=bash
# GROUP: drivers and clients that are not Linux's: SeaBIOS and OVMF boot from a disk, iPXE from a NIC, libblkio uses a disk
# Run by x.d/test.sh.
# shellcheck disable=SC2034  # variables here are read by x.d/guest.sh and x.d/server.sh

group_foreign() {
    need_guests
    [[ $GUEST_SERVER != sidecore ]] || need_sidecore
    need_boot_sector
    need_guest_image
    need_firmware
    run_cases case_seabios case_seabios_kvm case_ovmf case_ipxe
    if [[ -z $CASES || " $CASES " == *' libblkio '* ]]; then
        need_rust
        # `--release` shares what need_sidecore has built.
        SIDECORE_BIN=$SIDECORE run_command libblkio cargo test --profile driver -p tests --test foreign -- libblkio::
    fi
}

BOOT_SECTOR=$BUILD/guest/boot.bin

need_boot_sector() {
    mkdir -p "$BUILD/guest"
    as --32 -o "$BUILD/guest/boot.o" "$ROOT/tests/guest/boot/disk.S"
    ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o "$BOOT_SECTOR" "$BUILD/guest/boot.o"
}

# fill_boot_disk IMAGE: the boot sector with its sums, and sectors that are all different.
fill_boot_disk() {
    local image=$1
    truncate -s 16M "$image"
    dd if=/dev/urandom of="$image" bs=512 seek=1 count=8 conv=notrunc status=none
    dd if=/dev/urandom of="$image" bs=512 seek=2048 count=64 conv=notrunc status=none
    {
        head -c 506 "$BOOT_SECTOR"
        word "$(words_sum "$image" 2048 64)"
        word "$(words_sum "$image" 1 8)"
        printf '\x55\xaa'
    } | dd of="$image" bs=512 count=1 conv=notrunc iflag=fullblock status=none
}

# words_sum IMAGE SECTOR COUNT: 16-bit words added up; word N: one, low byte first.
words_sum() {
    dd if="$1" bs=512 skip="$2" count="$3" status=none | od -An -v -tu2 |
        awk '{ for (i = 1; i <= NF; i++) sum += $i } END { print sum % 65536 }'
}
word() { printf '%b' "\\x$(printf %02x $(($1 % 256)))\\x$(printf %02x $(($1 / 256)))"; }

# boot_firmware NAME SECONDS DEVICE OPTIONS...: boots, gives 0 if it says DISKOK in time.
boot_firmware() {
    local name=$1 until_ms=$(($(now_ms) + $2 * 1000)) pid
    shift 2
    rm -f "$SERVER_DIR/$name.console"
    qemu-system-x86_64 -name "$name" -m 64 -machine q35,memory-backend=memory \
        -object memory-backend-memfd,id=memory,size=64M,share=on -nodefaults -no-user-config \
        -no-reboot -display none -serial "file:$SERVER_DIR/$name.console" "$@" \
        >"$SERVER_DIR/$name.qemu" 2>&1 3>&- &
    pid=$!
    own "$pid"
    until grep -qE 'DISK[A-Z]' "$SERVER_DIR/$name.console" 2>/dev/null; do
        alive "$pid" || break
        (($(now_ms) < until_ms)) || break
        sleep 0.1
    done
    # The rest of the line.
    sleep 0.2
    kill -TERM "$pid" 2>/dev/null || true
    end_within 5 "$pid" || true
    disown_pid "$pid"
    grep -q DISKOK "$SERVER_DIR/$name.console" 2>/dev/null
}

# boot_from_daemon OPTIONS...: SeaBIOS on a disk of the daemon, and what it wrote is in the image.
boot_from_daemon() {
    fill_boot_disk "$(disk_image a)"
    server_disk a file 16M
    server_start
    if boot_firmware seabios 240 "$@" -chardev "socket,id=c0,path=$(disk_socket a),reconnect=1" \
        -device vhost-user-blk-pci,chardev=c0,num-queues=1,bootindex=0; then
        passed boots-and-reads
    else
        failed boots-and-reads "SeaBIOS said: $(tr -d '\r' <"$SERVER_DIR/seabios.console" 2>/dev/null |
            tail -n 1) $(tail -n 1 "$SERVER_DIR/seabios.qemu")"
        show_tail "$SERVER_LOG" "$GUEST_SERVER"
        return 1
    fi
    # Sector 4096 holds what was read from sector 1.
    if cmp -s <(dd if="$(disk_image a)" bs=512 skip=1 count=1 status=none) \
        <(dd if="$(disk_image a)" bs=512 skip=4096 count=1 status=none); then
        passed written-sector
    else
        failed written-sector 'sector 4096 of the image is not what the guest wrote'
    fi
}

case_seabios() {
    boot_from_daemon -accel tcg
}

# A KVM that cannot run a stock kernel may still run firmware: then kicks and calls are real
# ioeventfds and irqfds. Whether it can is tried with QEMU's own disk.
case_seabios_kvm() {
    if [[ ! -w /dev/kvm ]]; then
        skipped '' 'no /dev/kvm that may be written'
        return 0
    fi
    fill_boot_disk "$SERVER_DIR/probe.img"
    if ! boot_firmware probe 60 -accel kvm -cpu qemu64 \
        -drive "if=none,id=d,format=raw,file=$SERVER_DIR/probe.img" \
        -device virtio-blk-pci,drive=d,bootindex=0; then
        skipped '' "this machine's KVM does not run firmware, with QEMU's own disk neither$(
            tail -n 1 "$SERVER_DIR/probe.qemu" | sed 's/^/: /')"
        return 0
    fi
    boot_from_daemon -accel kvm -cpu qemu64
}

# OVMF reads a file with one request for each run of sectors that lie together, however long: here the whole kernel.
case_ovmf() {
    if [[ $GUEST_SERVER != sidecore ]]; then
        skipped '' "$GUEST_SERVER serves no driver without VERSION_1"
        return 0
    fi
    unified_kernel "$SERVER_DIR/uki.efi" 26M "run=firmware arg.disk=1"
    esp_of "$(disk_image a)" 256M "$SERVER_DIR/uki.efi"
    local mib=$(($(stat -c %s "$SERVER_DIR/uki.efi") >> 20))
    if ((mib >= 40)); then passed size "$mib MiB"; else failed size "the kernel has only $mib MiB"; fi
    server_disk a file 256M
    server_start
    ovmf_boots
    GUEST_MEMORY_MIB=1024 guest_start ovmf firmware a,bootindex=0
    guest_end ovmf 600
}

# iPXE, QEMU's own ROM for a virtio NIC, asks a DHCP server by a switch of the daemon, and loads the kernel over HTTP.
case_ipxe() {
    only_root || return 0
    if [[ $NET_SERVER != sidecore ]]; then
        skipped '' "$NET_SERVER has no NICs here"
        return 0
    fi
    net_inside
    server_switch lan
    server_uplink lan tap=lan0
    server_nic boot switch=lan
    server_start
    ip -n "$NET_HOST" addr add 10.9.0.1/24 dev lan0
    ip -n "$NET_HOST" link set lan0 up
    netboot_serve "$NET_HOST" lan0 10.9.0.1 'run=firmware arg.server=10.9.0.1'
    GUEST_NICS=('boot,bootindex=0')
    GUEST_BOOT=(-boot strict=on)
    guest_start ipxe firmware
    guest_end ipxe 600 || {
        show_tail "$SERVER_DIR/dnsmasq" 'the DHCP server'
        show_tail "$SERVER_DIR/httpd" 'the HTTP server'
        return 1
    }
}
