# shellcheck shell=bash
# The test guest: Debian 12's cloud kernel, downloaded and unpacked but not installed, and an
# initramfs with the recipes of tests/guest. Sets KERNEL and INITRAMFS. Sourced by ./x.

KERNEL=$BUILD/guest/vmlinuz
INITRAMFS=$BUILD/guest/initramfs.cpio
# What scripts run besides busybox; their libraries come along.
GUEST_PROGRAMS=(/usr/bin/fio /usr/bin/cksum /usr/sbin/mkfs.ext4 /usr/sbin/e2fsck
    /usr/sbin/blkdiscard /usr/sbin/fstrim
    /usr/bin/ip /usr/bin/ping /usr/sbin/ethtool /usr/bin/iperf3 /usr/bin/sockperf
    /usr/bin/memcached /usr/bin/memcslap)
# Modules that the scripts need and the kernel has not built in; what they depend on comes along.
GUEST_MODULES=(virtio_pci virtio_blk virtio_net 8021q crc32c-intel)

need_guest_image() {
    mkdir -p "$BUILD/guest"
    need_kernel
    local stamp
    stamp=$(guest_stamp)
    [[ -f $INITRAMFS && $(cat "$INITRAMFS.stamp" 2>/dev/null) == "$stamp" ]] && return 0
    say 'packing the guest: busybox, fio, e2fsprogs, iperf3 and the like, and the modules for virtio'
    local tree=$BUILD/guest/tree
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,sbin,usr/bin,usr/sbin,modules,scripts,dev,etc}
    cp /bin/busybox "$tree/bin/busybox"
    cp "$ROOT/tests/guest/init" "$tree/init"
    cp "$ROOT"/tests/guest/scripts/*.sh "$tree/scripts/"
    : >"$tree/etc/mtab"
    local program
    for program in "${GUEST_PROGRAMS[@]}"; do
        copy_program "$program" "$tree"
    done
    : >"$tree/modules/order"
    local module
    for module in "${GUEST_MODULES[@]}"; do
        copy_module "$module" "$tree"
    done
    # Not compressed: under emulation, unpacking takes longer than loading.
    (cd "$tree" && find . -print0 | sort -z |
        cpio --null --quiet --create --format=newc --owner=0:0) >"$INITRAMFS.part"
    mv "$INITRAMFS.part" "$INITRAMFS"
    printf '%s\n' "$stamp" >"$INITRAMFS.stamp"
    rm -rf "$tree"
}

# What the initramfs was made of: a change of any of it makes it anew.
guest_stamp() {
    {
        cat "$ROOT/tests/guest/init" "$ROOT"/tests/guest/scripts/*.sh "$ROOT/x.d/image.sh"
        cat "$BUILD/guest/package"
        stat -L -c '%n %s %Y' /bin/busybox "${GUEST_PROGRAMS[@]}"
    } | sha256sum | cut -d' ' -f1
}

need_kernel() {
    [[ -f $KERNEL && -f $BUILD/guest/package ]] && return 0
    local package
    apt_lists
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        awk '/Depends: linux-image-/ { print $2; exit }') || true
    [[ -n $package ]] || die 'apt knows no package linux-image-cloud-amd64' \
        'sudo apt-get update, then run this again (an amd64 machine with Debian 12 is expected)'
    say "downloading $package (not installed, only unpacked)"
    local downloads=$BUILD/downloads
    mkdir -p "$downloads"
    (cd "$downloads" && rm -f linux-image-*.deb && apt-get download "$package") \
        >"$BUILD/apt.log" 2>&1 || {
        show_tail "$BUILD/apt.log" 'the end of what apt said'
        die "apt could not download $package" 'sudo apt-get update, then run this again'
    }
    rm -rf "$BUILD/guest/kernel"
    mkdir -p "$BUILD/guest/kernel"
    dpkg-deb -x "$downloads"/linux-image-*.deb "$BUILD/guest/kernel"
    cp "$BUILD"/guest/kernel/boot/vmlinuz-* "$KERNEL"
    printf '%s\n' "$package" >"$BUILD/guest/package"
}

# copy_program PATH TREE: a program and every library it names, at the same places.
copy_program() {
    local library
    cp -L "$1" "$2$1"
    ldd "$1" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$2$(dirname "$library")"
        [[ -e $2$library ]] || cp -L "$library" "$2$library"
    done
}

# copy_module NAME TREE: a module after those it depends on; TREE/modules/order is the loading order.
copy_module() {
    local name=${1//_/-} file need
    file=$(find "$BUILD/guest/kernel/lib/modules" \( -name "${name//-/_}.ko" -o -name "$name.ko" \) \
        -print -quit)
    [[ -n $file ]] || die "the kernel has no module $1" \
        "remove it from GUEST_MODULES in x.d/image.sh if it is built in now"
    grep -qxF "$(basename "$file")" "$2/modules/order" && return 0
    for need in $(grep -aoP '(?<=depends=)[^\x00]+' "$file" | tr ',' ' '); do
        copy_module "$need" "$2"
    done
    cp "$file" "$2/modules/"
    basename "$file" >>"$2/modules/order"
}
