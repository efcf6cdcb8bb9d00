# Files, each synced and then told of, until somebody pulls the plug. arg_kind: ext4, xfs, btrfs.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
file_systems
case $arg_kind in
    ext4) check mkfs mkfs.ext4 -q -F /dev/vda ;;
    *) check mkfs "mkfs.$arg_kind" -q -f /dev/vda ;;
esac
check mount mount -t "$arg_kind" /dev/vda /mnt
ready files
number=0
while [ "$number" -lt 100000 ]; do
    number=$((number + 1))
    # Some are replaced, so that blocks are freed and used again.
    name=/mnt/file-$((number % 50))
    rm -f "$name"
    dd if=/dev/urandom of="$name" bs=4k count=$((number % 7 + 1)) conv=fsync 2>/dev/null
    echo "$number" >/mnt/last.new
    mv /mnt/last.new /mnt/last
    # busybox has no fsync of folders.
    sync
    ready "file-$number"
done
