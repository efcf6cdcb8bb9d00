# What the disk says of itself: serial number, size, and a cache that must be flushed; then the
# guest switches that cache off and on again.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
[ -z "$arg_serial" ] || same serial "$arg_serial" "$(attribute vda serial)"
same size "$arg_sectors" "$(attribute vda size)"
if [ -n "$arg_wce" ]; then
    same write-back "write back" "$(attribute vda queue/write_cache)"
    echo "write through" >/sys/block/vda/cache_type
    same switched-off "write through" "$(attribute vda queue/write_cache)"
    check write-through dd if=/dev/urandom of=/dev/vda bs=4k count=64 oflag=direct
    echo "write back" >/sys/block/vda/cache_type
    same switched-on "write back" "$(attribute vda queue/write_cache)"
fi
check flush dd if=/dev/urandom of=/dev/vda bs=4k count=16 oflag=direct conv=fsync
