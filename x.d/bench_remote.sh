# shellcheck shell=bash
# ./x bench remote: a disk of another machine, beside NBD servers and beside the same disk on this one, over a pair of
# interfaces between two namespaces, of MTU 1500 and then of 9000. What is measured is in bench/src/remote.rs. Sourced by ./x.
#
# Rows: remote.mtuM.{randread,randwrite}.qdN.{iops,p50_ns,p99_ns,cpu_ns_per_op}

bench_remote() {
    local mtu here there word mtus=(1500 9000) more=() status=0
    while (($#)); do
        word=$1
        shift
        case $word in
            --mtu)
                mtus=("${1:-1500}")
                shift || true
                ;;
            *) more+=("$word") ;;
        esac
    done
    ((EUID == 0)) || die './x bench remote makes namespaces, which needs root' 'sudo ./x bench remote'
    need_rust
    need_packages iproute2 util-linux qemu-utils nbdkit
    say 'building the benchmarks'
    cargo_quietly build --release -p bench -p sidecore-bin
    trap end_own EXIT
    here=$(namespace_name here) there=$(namespace_name there)
    own_namespace "$here"
    own_namespace "$there"
    for mtu in "${mtus[@]}"; do
        ip -n "$here" link add wire mtu "$mtu" type veth peer name wire mtu "$mtu" netns "$there"
        ip -n "$here" addr add 10.78.0.1/24 dev wire
        ip -n "$there" addr add 10.78.0.2/24 dev wire
        ip -n "$here" link set wire up
        ip -n "$there" link set wire up
        ip netns exec "$here" "${CARGO_TARGET_DIR:-$ROOT/target}/release/bench" remote \
            --at 10.78.0.2 --inside "$there" --mtu "$mtu" "${more[@]}" || status=$?
        ip -n "$here" link del wire
    done
    return "$status"
}
