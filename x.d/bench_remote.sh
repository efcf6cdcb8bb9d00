# shellcheck shell=bash
# ./x bench remote: a disk and a NIC of another machine, beside NBD servers and beside the same on this one, over a pair of
# interfaces between two namespaces, of MTU 1500 and then of 9000. `./x bench remote flood`: a good session beside strangers'
# frames; `sockets`: a frame's cost by each kind of socket; `consolidation`: sidecores of a busy host and an idle one, each with
# its own, and on one IOhost. What is measured is in bench/src/remote.rs. Sourced by ./x.
#
# Rows: remote.mtuM.{randread,randwrite}.qdN.{iops,p50_ns,p99_ns,cpu_ns_per_op}
#       remote.mtuM.{net,outside}.BYTES.{p50_ns,p99_ns}
#       remote.mtuM.flood.KIND.{alone_iops,deaf_iops,iops,sent_per_s,received_per_s,cost_ns,kept,bound}
#       remote.mtuM.frame.{calls,ring,xdp}.burstN.ns
#       remote.mtuM.consolidation.{half,same}.{4k,64k}.{own,shared}.{busy_iops,idle_p50_ns,idle_p99_ns,iohost_ns_per_op,
#           client_ns_per_op,lost,core0,core1}
#       remote.mtuM.consolidation.{half,same}.{4k,64k}.{ratio,bound,far,rest}

bench_remote() {
    local mtu here there word name mtus=(1500 9000) more=() status=0
    while (($#)); do
        word=$1
        shift
        case $word in
            --mtu)
                mtus=("${1:-1500}")
                shift || true
                ;;
            disk | net | flood | sockets | consolidation) more+=(--what "$word") ;;
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
        # Links without IP, each on a pair of its own; those to somebody outside, for each way to an IOhost one; and one whose ends are both here.
        for name in packet xdp out0 out1 out2 out3; do
            ip -n "$here" link add name "$name" mtu "$mtu" type veth peer name "$name" mtu "$mtu" \
                address 02:00:00:78:00:02 netns "$there"
            ip -n "$here" link set dev "$name" up
            ip -n "$there" link set dev "$name" up
        done
        ip -n "$here" link add near mtu "$mtu" type veth peer name nigh mtu "$mtu" address 02:00:00:78:00:04
        ip -n "$here" link set near up
        ip -n "$here" link set nigh up
        ip netns exec "$here" "${CARGO_TARGET_DIR:-$ROOT/target}/release/bench" remote \
            --at 10.78.0.2 --inside "$there" --mtu "$mtu" "${more[@]}" || status=$?
        for name in wire packet xdp out0 out1 out2 out3 near; do
            ip -n "$here" link del dev "$name"
        done
    done
    return "$status"
}
