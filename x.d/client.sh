# shellcheck shell=bash
# A machine whose own kernel has a disk and a NIC of an IOhost: a guest with Debian's kernel 6.12 and VDUSE, in which
# `sidecore client` runs. Its one real NIC is a tap in the namespace where the IOhost runs. Used by x.d/test/remote.sh.
# Sourced by ./x.
#
#   client_world         keys, the IOhost `a` with a disk `db` and a switch, and the guest `machine`
#   client_start         `sidecore client` in it; its devices are there when this returns
#   client_iohost        the IOhost's configuration; CLIENT_DISK is how large `db` is, nothing if there is none

CLIENT_DISK=256M
CLIENT_WIRE=10.79.0
# What the guest of the lab's kernel takes besides what any guest does.
CLIENT_MODULES=(virtio_pci virtio_net virtio_blk vdpa vduse virtio_vdpa ext4 crc32c_generic)

# need_client_image: KERNEL and INITRAMFS are that guest's from here on.
need_client_image() {
    need_packages xz-utils
    mkdir -p "$LAB"
    need_lab_kernel
    local tree=$BUILD/guest/client.tree
    say 'packing the machine: the guest, the daemon, and the modules for VDUSE'
    guest_tree "$tree" "$LAB/kernel" "${CLIENT_MODULES[@]}"
    strip -o "$tree/bin/sidecore" "$SIDECORE"
    copy_libraries "$SIDECORE" "$tree"
    KERNEL=$LAB/vmlinuz
    INITRAMFS=$SERVER_DIR/client.cpio
    pack_tree "$tree" "$INITRAMFS"
}

client_world() {
    net_inside
    remote_lan
    remote_place a
    local namespace=${IOHOST_SPACES[a]}
    ip -n "$namespace" tuntap add wire0 mode tap
    ip -n "$namespace" addr add "$CLIENT_WIRE.1/24" dev wire0
    ip -n "$namespace" link set wire0 up
    remote_key iohost >/dev/null
    client_iohost
    iohost_start a
    say "booting a machine with the kernel $(basename "$LAB"/kernel/boot/vmlinuz-* | cut -d- -f2-) and VDUSE ($(accelerator | cut -d, -f1))"
    GUEST_INSIDE=(ip netns exec "$namespace")
    GUEST_MEMORY_MIB=1024
    GUEST_QEMU=(-netdev "tap,id=wire,ifname=wire0,script=no,downscript=no" -device "virtio-net-pci,netdev=wire")
    guest_start machine orders
    guest_ready machine orders 90
    guest_do machine "mount -t tmpfs run /run; mkdir -p /etc/sidecore; ip addr add $CLIENT_WIRE.2/24 dev eth0; ip link set eth0 up
        (umask 077; echo $(<"$SERVER_DIR/vmhost.key") >/etc/sidecore/this.key)"
}

client_iohost() {
    mkdir -p "$SERVER_DIR/a/state"
    cat >"$SERVER_DIR/a/sidecore.toml" <<END
[daemon]
api = "$SERVER_DIR/a/api.sock"
run_dir = "$SERVER_DIR/a"
state_dir = "$SERVER_DIR/a/state"

[sidecores]
cpus = "auto"

[[switch]]
id = "lan"

[[switch.uplink]]
interface = "lan0"

[[switch.uplink]]
remote = "web"

[[link]]
id = "rack"
role = "iohost"
udp = "0.0.0.0:$REMOTE_PORT"
key_file = "$SERVER_DIR/iohost.key"

[[link.client]]
name = "machine"
key = "$(remote_key vmhost)"
disks = [${CLIENT_DISK:+"\"db\""}]
nics = ["web"]
END
    [[ -z $CLIENT_DISK ]] || cat >>"$SERVER_DIR/a/sidecore.toml" <<END

[[disk]]
id = "db"
path = "$(disk_image db)"
size = "$CLIENT_DISK"
END
}

# client_start [WORDS...]: its log is /tmp/client.log in the guest.
client_start() {
    guest_do machine "SIDECORE_CONFINE=strict sidecore client --iohost $CLIENT_WIRE.1:$REMOTE_PORT --iohost-key $(remote_key iohost) \
        --key-file /etc/sidecore/this.key --disk db --nic web $* >>/tmp/client.log 2>&1 & echo \$! >/tmp/client.pid"
    client_has 'the kernel has the disk' 'test -b /dev/vda' &&
        client_has 'the kernel has the NIC' 'ip link show eth1'
}

# client_has NAME COMMAND [SECONDS]: within that time the command says yes in the guest.
client_has() {
    local before
    before=$(count_outcomes fail "$OUTCOMES")
    ask "$1" machine "$(await_for "${3:-30}" "$2 >/dev/null 2>&1")"
    (($(count_outcomes fail "$OUTCOMES") == before)) || {
        guest_do machine 'tail -n 30 /tmp/client.log; dmesg | tail -n 20' >&2 || true
        return 1
    }
}
