# shellcheck shell=bash
# ./x lab: what it takes of this machine: packages, a kernel, nginx. The lab itself is the program `lab`
# (docs/decisions/0008-lab.md). Sourced by ./x.

LAB=$BUILD/lab

# cmd_lab ARGUMENTS...: ./x lab --help
cmd_lab() {
    need_rust
    say 'building the lab'
    cargo_quietly build --release -p lab
    case " $* " in
        *' --help '* | *' -h '*) ;;
        *) need_lab ;;
    esac
    SIDECORE_BIN=$SIDECORE SIDECORE_BUILD=$BUILD exec "${CARGO_TARGET_DIR:-$ROOT/target}/release/lab" measure "$@"
}

need_lab() {
    need_guests
    need_packages xz-utils qemu-system-x86 qemu-system-common qemu-utils libssl3 libpcre2-8-0 zlib1g
    need_sidecore
    need_lab_kernel
    # Unpacked only, so that none is started on this host.
    [[ -x $LAB/nginx/usr/sbin/nginx ]] || unpack_package nginx "$LAB/nginx"
}

# need_lab_kernel: of L1 and L2, and of other machines that share files. Not the test guest's: that has neither 9p nor KVM.
need_lab_kernel() {
    [[ ! -f $LAB/vmlinuz ]] || return 0
    local package
    mkdir -p "$LAB"
    apt_lists
    package=$(apt-cache depends linux-image-6.12-amd64 2>/dev/null |
        awk '/Depends: linux-image-/ { print $2; exit }') || true
    [[ -n $package ]] || die 'apt knows no package linux-image-6.12-amd64' \
        'sudo apt-get update, then run this again (Debian 12 is expected)'
    unpack_package "$package" "$LAB/kernel"
    cp "$LAB"/kernel/boot/vmlinuz-* "$LAB/vmlinuz"
}
