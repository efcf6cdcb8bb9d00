# A file system's life: mkfs.ext4, files, unmount, fsck, mount again, the same files.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
fill() {
    mkdir /mnt/tree && cp -r /bin /lib /modules /mnt/tree/ &&
        dd if=/dev/urandom of=/mnt/tree/random bs=1M count=16 conv=fsync 2>&1 &&
        (cd /mnt/tree && find . -type f | sort | xargs cksum >/tmp/sums)
}
again() { (cd /mnt/tree && find . -type f | sort | xargs cksum) | cmp - /tmp/sums; }
check mkfs mkfs.ext4 -q -F /dev/vda
check mount mount -t ext4 /dev/vda /mnt
check fill fill
check unmount umount /mnt
echo 3 >/proc/sys/vm/drop_caches
check fsck e2fsck -f -n /dev/vda
check mount-again mount -t ext4 -o ro /dev/vda /mnt
check same-files again
check unmount-again umount /mnt
