# shellcheck shell=bash
# ./x lab: what it takes of this machine: packages, a kernel, nginx. The lab itself is the program `lab`
# (docs/decisions/0008-lab.md). Sourced by ./x.

# cmd_lab ARGUMENTS...: ./x lab --help
cmd_lab() {
    need_rust
    say 'building the lab'
    run_cargo build --release -p lab
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
