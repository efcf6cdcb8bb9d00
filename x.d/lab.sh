# shellcheck shell=bash
# ./x lab: guests on real KVM, and what their I/O costs (docs/decisions/0008-lab.md). On a host with
# hardware KVM they run on it; elsewhere in L1, an emulated machine. Sourced by ./x.

LAB=$BUILD/lab
# Modules of L1: KVM, what shares files with the host, what the kernel's own servers of I/O need.
L1_MODULES=(virtio_pci 9pnet_virtio 9p overlay kvm-amd tun tap bridge vhost_net null_blk brd)
# Modules of L2: what its devices need, the emulated ones too.
L2_MODULES=(virtio_pci virtio_blk virtio_net ata_piix sd_mod e1000)
# What serves in L2, besides nginx.
L2_PROGRAMS=(/usr/bin/memcached)
# A machine that hangs is ended, and started once more.
L1_TRIES=2

cmd_lab() {
    local report=()
    LAB_ARGUMENTS=()
    has_kvm || report+=(--emulated)
    while (($#)); do
        case $1 in
            --json) report+=(--json) ;;
            *) LAB_ARGUMENTS+=("$1") ;;
        esac
        shift
    done
    need_lab
    lab_run
    "$LAB/out/lab" report "${report[@]}" --html "$LAB/report.html" "$LAB/out/rows.json"
}

# need_lab: packages, programs, images.
need_lab() {
    need_guests
    need_packages xz-utils qemu-system-x86 qemu-system-common qemu-utils libssl3 libpcre2-8-0 zlib1g
    need_sidecore
    say 'building the lab'
    cargo_quietly build --release -p lab
    mkdir -p "$LAB/out"
    # Not where the next build writes while a guest runs it.
    cp --remove-destination "${CARGO_TARGET_DIR:-$ROOT/target}/release/lab" "$LAB/out/lab"
    need_lab_kernel
    need_nginx
    need_l2_image
}

# has_kvm: stock guests run on this host's KVM.
has_kvm() { [[ $(accelerator) == kvm ]]; }

lab_run() {
    rm -f "$LAB"/out/{rows.json,said,status}
    printf '%s\n' run --sidecore "$SIDECORE" --kernel "$LAB/vmlinuz" --initramfs "$LAB/l2.cpio" \
        --dir /run/sidecore-lab "${LAB_ARGUMENTS[@]}" >"$LAB/out/arguments"
    if has_kvm; then
        local arguments
        mapfile -t arguments <"$LAB/out/arguments"
        "$LAB/out/lab" "${arguments[@]}" >"$LAB/out/rows.json" ||
            die 'the lab ended badly' 'read what it said above'
        return
    fi
    need_l1_image
    local try
    for ((try = 1; try <= L1_TRIES; try++)); do
        l1_once
        case $(cat "$LAB/out/status" 2>/dev/null) in
            0) return ;;
            '')
                say "L1 did not come to its end (time $try of $L1_TRIES)"
                show_tail "$LAB/l1.console" 'the console of L1'
                ;;
            *) break ;;
        esac
    done
    show_tail "$LAB/out/said" 'what the lab said'
    die 'the lab ended badly' "read $LAB/l1.console and $LAB/out/said"
}

# l1_once: L1 from its start to its end, with what the lab says in it on stderr meanwhile.
l1_once() {
    local began shown=0 lines pid
    rm -f "$LAB"/out/{rows.json,said,status}
    say 'starting L1: no KVM of hardware here, so an emulated machine with KVM'
    qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "${L1_MEMORY_MIB:-3000}" \
        -nodefaults -no-user-config -no-reboot -display none \
        -kernel "$LAB/vmlinuz" -initrd "$LAB/l1.cpio" \
        -append "console=ttyS0 quiet mitigations=off clocksource=tsc tsc=reliable no_timer_check panic=-1 lab.root=$ROOT lab.out=$LAB/out" \
        -serial "file:$LAB/l1.console" \
        -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
        -virtfs "local,path=$LAB/out,mount_tag=out,security_model=none" >"$LAB/l1.qemu" 2>&1 3>&- &
    pid=$!
    own "$pid"
    began=$SECONDS
    while alive "$pid"; do
        lines=$(wc -l 2>/dev/null <"$LAB/out/said") || lines=0
        if ((lines > shown)); then
            sed -n "$((shown + 1)),${lines}p" "$LAB/out/said" | while read -r line; do say "$line"; done
            shown=$lines
        fi
        ((SECONDS - began < ${L1_SECONDS:-1500})) || { kill -KILL "$pid"; break; }
        sleep 0.3
    done
    wait "$pid" 2>/dev/null || true
    disown_pid "$pid"
}

# need_lab_kernel: of L1 and L2. Not the test guest's: that has neither KVM nor e1000.
need_lab_kernel() {
    [[ ! -f $LAB/vmlinuz ]] || return 0
    local package
    apt_lists
    package=$(apt-cache depends linux-image-6.12-amd64 2>/dev/null |
        awk '/Depends: linux-image-/ { print $2; exit }') || true
    [[ -n $package ]] || die 'apt knows no package linux-image-6.12-amd64' \
        'sudo apt-get update, then run this again (Debian 12 is expected)'
    unpack_package "$package" "$LAB/kernel"
    cp "$LAB"/kernel/boot/vmlinuz-* "$LAB/vmlinuz"
}

# need_nginx: unpacked only, so that none is started on this host.
need_nginx() {
    [[ -x $LAB/nginx/usr/sbin/nginx ]] || unpack_package nginx "$LAB/nginx"
    ! ldd "$LAB/nginx/usr/sbin/nginx" | grep 'not found' >&2 ||
        die 'nginx lacks these libraries' 'install the Debian packages that have them'
}

need_l1_image() {
    local stamp tree=$LAB/l1.tree
    stamp=$(cat "$ROOT/x.d/lab.sh" "$ROOT/x.d/image.sh" "$ROOT/x.d/lab/l1_init" | sha256sum)
    [[ -f $LAB/l1.cpio && $(cat "$LAB/l1.stamp" 2>/dev/null) == "$stamp" ]] && return 0
    say 'packing L1: busybox, and modules for KVM and 9p'
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,modules}
    cp /bin/busybox "$tree/bin/busybox"
    cp "$ROOT/x.d/lab/l1_init" "$tree/init"
    : >"$tree/modules/order"
    local module
    for module in "${L1_MODULES[@]}"; do
        copy_module "$module" "$tree" "$LAB/kernel"
    done
    pack_tree "$tree" "$LAB/l1.cpio"
    printf '%s\n' "$stamp" >"$LAB/l1.stamp"
}

# need_l2_image: the guest that is measured: modules for its devices, the lab, and servers.
need_l2_image() {
    local tree=$LAB/l2.tree
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,usr/bin,usr/sbin,modules,etc,run,tmp,www,var/lib/nginx,var/log/nginx}
    cp /bin/busybox "$tree/bin/busybox"
    cp "$ROOT/x.d/lab/l2_init" "$tree/init"
    cp "$LAB/out/lab" "$tree/bin/lab"
    copy_libraries "$tree/bin/lab" "$tree"
    local program module
    for program in "${L2_PROGRAMS[@]}"; do
        copy_program "$program" "$tree"
    done
    cp "$LAB/nginx/usr/sbin/nginx" "$tree/usr/sbin/nginx"
    copy_libraries "$tree/usr/sbin/nginx" "$tree"
    cp "$ROOT/x.d/lab/l2_nginx.conf" "$tree/etc/nginx.conf"
    printf 'root:x:0:0::/:/bin/sh\n' >"$tree/etc/passwd"
    printf 'root:x:0:\n' >"$tree/etc/group"
    head -c 1024 /dev/zero | tr '\0' x >"$tree/www/1k"
    head -c 8192 /dev/zero | tr '\0' x >"$tree/www/8k"
    : >"$tree/modules/order"
    for module in "${L2_MODULES[@]}"; do
        copy_module "$module" "$tree" "$LAB/kernel"
    done
    pack_tree "$tree" "$LAB/l2.cpio"
}
