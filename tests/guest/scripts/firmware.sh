# What a kernel that firmware or another kernel has loaded finds: what arg_disk, arg_server and arg_sum say is there.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
if [ -n "$arg_sum" ]; then
    check booted-by-efi test -d /sys/firmware/efi
    check unified-kernel-whole test "$(cksum </pad | cut -d' ' -f1)" = "$arg_sum"
fi
if [ -n "$arg_disk" ]; then
    check disk-there test -b /dev/vda
    check disk-reads dd if=/dev/vda of=/dev/null bs=1M count=8
fi
if [ -n "$arg_server" ]; then
    # shellcheck disable=SC2016  # udhcpc's variables
    printf '#!/bin/sh\n[ "$1" != bound ] || /usr/bin/ip addr add "$ip/24" dev "$interface"\n' >/tmp/udhcpc
    chmod +x /tmp/udhcpc
    check link-up /usr/bin/ip link set eth0 up
    check leased udhcpc -i eth0 -n -q -t 20 -T 3 -s /tmp/udhcpc
    check reached /usr/bin/ping -q -c 3 -i 0.2 -W 60 "$arg_server"
fi
