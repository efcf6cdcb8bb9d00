# shellcheck shell=bash
# Kernels of guests and what goes with them: Debian packages, downloaded and unpacked in build/ but not installed. The
# guests' images are made of them by the crate `testing`. Sourced by ./x.

LAB=$BUILD/lab

# need_guest_kernel: Debian 12's cloud kernel, of stock guests.
need_guest_kernel() {
    [[ -f $BUILD/guest/vmlinuz && -f $BUILD/guest/package ]] && return 0
    local package
    package=$(depended_on linux-image-cloud-amd64)
    unpack_package "$package" "$BUILD/guest/kernel"
    cp "$BUILD"/guest/kernel/boot/vmlinuz-* "$BUILD/guest/vmlinuz"
    printf '%s\n' "$package" >"$BUILD/guest/package"
}

# need_lab_kernel: of L1 and L2, and of other machines that share files. Not the test guest's: that has neither 9p nor KVM.
need_lab_kernel() {
    [[ ! -f $LAB/vmlinuz ]] || return 0
    mkdir -p "$LAB"
    unpack_package "$(depended_on linux-image-6.12-amd64)" "$LAB/kernel"
    cp "$LAB"/kernel/boot/vmlinuz-* "$LAB/vmlinuz"
}

# need_newest_kernel: Debian's newest cloud kernel, and kexec. Where there is none, the case that wants it is skipped.
need_newest_kernel() {
    local package folder=$BUILD/guest/other
    mkdir -p "$folder"
    # Its own package is not installed: it takes part in the host's shutdown.
    [[ -x $BUILD/guest/kexec/sbin/kexec ]] || unpack_package kexec-tools "$BUILD/guest/kexec"
    apt_lists
    package=$(apt-cache search --names-only '^linux-image-6\.12\..*-cloud-amd64(-unsigned)?$' |
        awk '{ print $1 }' | sort -V | tail -n 1)
    [[ -n $package && $(cat "$folder/package" 2>/dev/null) != "$package" ]] || return 0
    unpack_package "$package" "$folder/kernel"
    printf '%s\n' "$package" >"$folder/package"
}

# depended_on PACKAGE: the kernel's own package that this one stands for.
depended_on() {
    local package
    apt_lists
    package=$(apt-cache depends "$1" 2>/dev/null | awk '/Depends: linux-image-/ { print $2; exit }') || true
    [[ -n $package ]] || die "apt knows no package $1" \
        'sudo apt-get update, then run this again (an amd64 machine with Debian 12 is expected)'
    printf '%s' "$package"
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
