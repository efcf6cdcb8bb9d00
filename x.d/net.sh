# shellcheck shell=bash
# The networks of a test: namespaces, switches, NICs, and questions about them. NICs are served by the
# daemon, or (NET_SERVER=linux) by QEMU on taps. Sourced by ./x.
#
#   net_inside                        from here on the daemon runs in a namespace, NET_HOST, that stands for the host
#   server_nic ID KEY=VALUE...        keys of the file; queues, mtu and tap are QEMU's too; its MAC address is nic_mac ID
#   in_namespace NAME COMMAND...      a command there
#
# Nothing outside of the namespaces that it made is touched.

NET_SERVER=${NET_SERVER:-$GUEST_SERVER}

declare -A NIC_MACS=() NIC_QUEUES=() NIC_MTUS=() NIC_TAPS=()
NIC_OPTIONS=()
NET_INSIDE=()
GUEST_INSIDE=()
NET_HOST=

net_begin() {
    NIC_MACS=() NIC_QUEUES=() NIC_MTUS=() NIC_TAPS=()
    NET_INSIDE=() GUEST_INSIDE=() NET_HOST=
    GUEST_NICS=()
}

# namespace_name NAME: unlike that of another run, or case, at the same time.
namespace_name() { printf 'sidecore-%s-%s' "$$${CASE:+-$CASE}" "$1"; }

net_inside() {
    NET_HOST=$(namespace_name host)
    own_namespace "$NET_HOST"
    NET_INSIDE=(ip netns exec "$NET_HOST")
    # A guest of the daemon has nothing to do with the network of its QEMU.
    [[ $NET_SERVER != linux ]] || GUEST_INSIDE=("${NET_INSIDE[@]}")
}

in_namespace() {
    local namespace=$1
    shift
    ip netns exec "$namespace" "$@"
}

# only_root: NICs of the host need it; the rest of the case is skipped.
only_root() {
    ((EUID != 0)) || return 0
    skipped '' 'namespaces and taps need root'
    return 1
}

nic_mac() { printf '%s' "${NIC_MACS[$1]}"; }

# toml_fields KEY=VALUE...: numbers, lists, `true` and `false` as they are, everything else quoted.
toml_fields() {
    local field
    for field; do
        if [[ ${field#*=} =~ ^([0-9]+|true|false|\[.*)$ ]]; then
            printf '%s = %s\n' "${field%%=*}" "${field#*=}"
        else
            printf '%s = "%s"\n' "${field%%=*}" "${field#*=}"
        fi
    done
}

server_nic() {
    local id=$1 field number=$((${#NIC_MACS[@]} + 1))
    shift
    NIC_MACS[$id]=$(printf '52:54:00:51:00:%02x' "$number")
    NIC_QUEUES[$id]=1
    NIC_MTUS[$id]=1500
    for field; do
        case $field in
            queues=*) NIC_QUEUES[$id]=${field#*=} ;;
            mtu=*) NIC_MTUS[$id]=${field#*=} ;;
        esac
    done
    if [[ $NET_SERVER == linux ]]; then
        linux_nic "$id" "$number" "$@"
    else
        SERVER_SOCKETS+=("$(disk_socket "$id")")
        {
            printf '\n[[nic]]\n'
            toml_fields "id=$id" "mac=${NIC_MACS[$id]}" "$@"
        } >>"$SERVER_CONFIG"
    fi
}

# nic_options NAME NIC[,property=value...]: for QEMU, in NIC_OPTIONS.
nic_options() {
    local name=$1 id=${2%%,*} properties=${2#"${2%%,*}"} queues=${NIC_QUEUES[${2%%,*}]}
    [[ ${NIC_MTUS[$id]} == 1500 ]] || properties+=",host_mtu=${NIC_MTUS[$id]}"
    ((queues == 1)) || properties+=",mq=on"
    # QEMU 7.2 without KVM ends when a guest masks an MSI-X vector of a vhost-user NIC
    # (kvm_virtio_pci_irqfd_use is called all the same): emulated guests have none.
    case $(accelerator) in
        kvm) ((queues == 1)) || properties+=",vectors=$((2 * queues + 2))" ;;
        # Newer ones do not: whoever starts one says so.
        *) [[ $properties == *,vectors=* ]] || properties+=,vectors=0 ;;
    esac
    if [[ $NET_SERVER == linux ]]; then
        NIC_OPTIONS=(-netdev "tap,id=$name,ifname=${NIC_TAPS[$id]},script=no,downscript=no,vhost=off,queues=$queues")
    else
        NIC_OPTIONS=(
            -chardev "socket,id=c$name,path=$(disk_socket "$id"),reconnect=1"
            -netdev "vhost-user,id=$name,chardev=c$name,queues=$queues")
    fi
    NIC_OPTIONS+=(-device "virtio-net-pci,id=d$name,netdev=$name,mac=${NIC_MACS[$id]}$properties")
}

linux_nic() {
    local id=$1 tap=tap$2 field mode=()
    shift 2
    for field; do
        case $field in
            tap=*) tap=${field#*=} ;;
        esac
    done
    NIC_TAPS[$id]=$tap
    ((NIC_QUEUES[$id] == 1)) || mode=(multi_queue)
    ip -n "$NET_HOST" tuntap add "$tap" mode tap vnet_hdr "${mode[@]}"
    ip -n "$NET_HOST" link set "$tap" mtu "${NIC_MTUS[$id]}" up
}
