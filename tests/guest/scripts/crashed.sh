# After crash.sh, with the same arg_kind: the journal is replayed, the file system is whole, and what had been synced
# (file arg_last) is there.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
file_systems
check mount mount -t "$arg_kind" /dev/vda /mnt || exit 1
found=$(cat /mnt/last)
if [ "${found:-0}" -ge "$arg_last" ]; then
    result synced ok "$found, and $arg_last was asked for"
else
    result synced FAIL "the disk has file '$found', $arg_last had been synced"
fi
same size "$(((found % 7 + 1) * 4096))" "$(stat -c %s "/mnt/file-$((found % 50))")"
check unmount umount /mnt
case $arg_kind in
    ext4) check fsck e2fsck -f -n /dev/vda ;;
    xfs) check fsck xfs_repair -n /dev/vda ;;
    btrfs) check fsck btrfs check /dev/vda ;;
esac
