# shellcheck shell=bash
# The test guest: Debian 12's cloud kernel, downloaded and unpacked but not installed, and an
# initramfs with the recipes of tests/guest. Sets KERNEL and INITRAMFS. Sourced by ./x.

KERNEL=$BUILD/guest/vmlinuz
INITRAMFS=$BUILD/guest/initramfs.cpio
# What scripts run besides busybox; their libraries come along.
GUEST_PROGRAMS=(/usr/bin/fio /usr/bin/cksum /usr/sbin/mkfs.ext4 /usr/sbin/e2fsck
    /usr/sbin/blkdiscard /usr/sbin/fstrim /usr/bin/sync /usr/bin/sqlite3
    /usr/bin/ip /usr/bin/ping /usr/sbin/ethtool /usr/bin/iperf3 /usr/bin/sockperf
    /usr/bin/memcached /usr/bin/memcslap)
# Modules that the scripts need and the kernel has not built in; what they depend on comes along.
GUEST_MODULES=(virtio_pci virtio_blk virtio_net 8021q af_packet crc32c-intel)

need_guest_image() {
    mkdir -p "$BUILD/guest"
    need_kernel
    local stamp
    stamp=$(guest_stamp)
    [[ -f $INITRAMFS && $(cat "$INITRAMFS.stamp" 2>/dev/null) == "$stamp" ]] && return 0
    say 'packing the guest: busybox, fio, e2fsprogs, sqlite3, iperf3 and the like, and the modules for virtio'
    local tree=$BUILD/guest/tree
    guest_tree "$tree" "$BUILD/guest/kernel" "${GUEST_MODULES[@]}"
    pack_tree "$tree" "$INITRAMFS"
    printf '%s\n' "$stamp" >"$INITRAMFS.stamp"
}

# guest_tree TREE KERNEL MODULE...: what is in a guest's initramfs, with modules of that unpacked kernel package.
guest_tree() {
    local tree=$1 kernel=$2 program module
    shift 2
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,sbin,usr/bin,usr/sbin,modules,scripts,dev,etc}
    cp /bin/busybox "$tree/bin/busybox"
    cp "$ROOT/tests/guest/init" "$tree/init"
    cp "$ROOT"/tests/guest/scripts/*.sh "$tree/scripts/"
    : >"$tree/etc/mtab"
    for program in "${GUEST_PROGRAMS[@]}"; do
        copy_program "$program" "$tree"
    done
    guest_own_programs "$tree/usr/bin"
    : >"$tree/modules/order"
    for module; do
        copy_module "$module" "$tree" "$kernel"
    done
}

# guest_own_programs FOLDER: those of tests/guest/programs, built.
guest_own_programs() {
    local source
    need_packages gcc libc6-dev linux-libc-dev
    for source in "$ROOT"/tests/guest/programs/*.c; do
        cc -O2 -Wall -Werror -static -o "$1/$(basename "$source" .c)" "$source" ||
            die "$source does not compile" 'apt-get install gcc libc6-dev linux-libc-dev'
    done
}

# pack_tree TREE FILE: an initramfs of a folder, which is removed. Not compressed: under emulation,
# unpacking takes longer than loading.
pack_tree() {
    (cd "$1" && find . -print0 | sort -z |
        cpio --null --quiet --create --format=newc --owner=0:0) >"$2.part"
    mv "$2.part" "$2"
    rm -rf "$1"
}

# image_with TREE FILE: the guest's initramfs with a second part, of a folder, which is removed.
image_with() {
    pack_tree "$1" "$2.more"
    cat "$INITRAMFS" "$2.more" >"$2"
    rm "$2.more"
}

# modules_apart TREE FOLDER MODULE...: into TREE/FOLDER, with what they depend on and their order; `init` does not
# load them.
modules_apart() {
    local tree=$1 folder=$2 module
    shift 2
    mkdir -p "$tree/modules" "$tree/$folder"
    : >"$tree/modules/order"
    for module; do copy_module "$module" "$tree"; done
    mv "$tree"/modules/* "$tree/$folder/"
    rmdir "$tree/modules"
}

# What the initramfs was made of: a change of any of it makes it anew.
guest_stamp() {
    {
        cat "$ROOT/tests/guest/init" "$ROOT"/tests/guest/scripts/*.sh "$ROOT"/tests/guest/programs/*.c "$ROOT/x.d/image.sh"
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
    unpack_package "$package" "$BUILD/guest/kernel"
    cp "$BUILD"/guest/kernel/boot/vmlinuz-* "$KERNEL"
    printf '%s\n' "$package" >"$BUILD/guest/package"
}

# unpack_package PACKAGE DIR: a Debian package, downloaded and unpacked but not installed.
unpack_package() {
    say "downloading $1 (not installed, only unpacked)"
    local downloads=$BUILD/downloads
    mkdir -p "$downloads"
    (cd "$downloads" && rm -f "$1"_*.deb && apt-get download "$1") >"$BUILD/apt.log" 2>&1 || {
        show_tail "$BUILD/apt.log" 'the end of what apt said'
        die "apt could not download $1" 'sudo apt-get update, then run this again'
    }
    rm -rf "$2"
    mkdir -p "$2"
    dpkg-deb -x "$downloads/$1"_*.deb "$2"
    rm -f "$downloads/$1"_*.deb
}

# copy_program PATH TREE: a program and every library it names, at the same places.
copy_program() {
    cp -L "$1" "$2$1"
    copy_libraries "$1" "$2"
}

# copy_libraries PROGRAM TREE: those it names.
copy_libraries() {
    local library
    ldd "$1" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$2$(dirname "$library")"
        [[ -e $2$library ]] || cp -L "$library" "$2$library"
    done
}

# copy_module NAME TREE [KERNEL]: a module after those it depends on, of the unpacked kernel package; those
# that are built in are left out. TREE/modules/order is the loading order.
copy_module() {
    local name=${1//_/-} kernel=${3:-$BUILD/guest/kernel} file unpacked need
    ! grep -qE "/(${name//-/_}|$name)\.ko$" "$kernel"/lib/modules/*/modules.builtin || return 0
    file=$(find "$kernel/lib/modules" -regextype posix-extended \
        -regex ".*/(${name//-/_}|$name)\.ko(\.xz)?" -print -quit)
    [[ -n $file ]] || die "the kernel has no module $1" "look for its new name in $kernel/lib/modules"
    unpacked=$(basename "${file%.xz}")
    grep -qxF "$unpacked" "$2/modules/order" && return 0
    case $file in
        *.xz) xz -dc "$file" >"$2/modules/$unpacked" ;;
        *) cp "$file" "$2/modules/$unpacked" ;;
    esac
    for need in $(grep -aoP '(?<=depends=)[^\x00]+' "$2/modules/$unpacked" | tr ',' ' '); do
        copy_module "$need" "$2" "$kernel"
    done
    printf '%s\n' "$unpacked" >>"$2/modules/order"
}
