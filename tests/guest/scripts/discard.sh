# Discard and write zeroes: offered, done, and only where they were asked for.
# Programs that busybox has too are named by their path: its shell takes its own first.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
same discard-offered yes "$([ "$(attribute vda queue/discard_max_bytes)" -gt 0 ] && echo yes)"
same zeroes-offered yes "$([ "$(attribute vda queue/write_zeroes_max_bytes)" -gt 0 ] && echo yes)"
dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
dd if=/tmp/data of=/dev/vda bs=1M oflag=direct conv=fsync 2>/dev/null
region() { dd if="$1" bs=1M skip="$2" count="$3" iflag="${4:-fullblock}" 2>/dev/null | cksum; }
check write-zeroes /usr/sbin/blkdiscard -z -o 2097152 -l 2097152 /dev/vda
echo 3 >/proc/sys/vm/drop_caches
same zeroes-read-back "$(region /dev/zero 0 2)" "$(region /dev/vda 2 2 direct)"
same before-zeroes "$(region /tmp/data 0 2)" "$(region /dev/vda 0 2 direct)"
same after-zeroes "$(region /tmp/data 4 4)" "$(region /dev/vda 4 4 direct)"
check discard /usr/sbin/blkdiscard -o 4194304 -l 2097152 /dev/vda
echo 3 >/proc/sys/vm/drop_caches
same after-discard "$(region /tmp/data 6 2)" "$(region /dev/vda 6 2 direct)"
check mkfs mkfs.ext4 -q -F /dev/vda
check mount mount -t ext4 /dev/vda /mnt
dd if=/dev/urandom of=/mnt/file bs=1M count=24 conv=fsync 2>/dev/null
rm /mnt/file
sync
check fstrim /usr/sbin/fstrim -v /mnt
umount /mnt
check fsck e2fsck -f -n /dev/vda
