# Files, each synced and then told of, until somebody pulls the plug.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
check mkfs mkfs.ext4 -q -F /dev/vda
check mount mount -t ext4 /dev/vda /mnt
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
