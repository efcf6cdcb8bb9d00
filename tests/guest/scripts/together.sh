# One of several guests that work at the same time: an ext4 file system and fio --verify in it.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
check mkfs mkfs.ext4 -q -F /dev/vda
check mount mount -t ext4 /dev/vda /mnt
work() {
    while :; do
        fio --ioengine=libaio --direct=1 --directory=/mnt --name=verify --rw=randwrite \
            --bssplit=4k/70:16k/20:64k/10 --iodepth=32 --size="${arg_size:-32m}" --numjobs=2 --end_fsync=1 \
            --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0 \
            --output=/tmp/verify.out || return
        # The host may want it to go on until it says that it is enough.
        if [ -z "${arg_until:-}" ] || [ -e "$arg_until" ]; then return 0; fi
    done
}
ready fio
check fio-verify work
check unmount umount /mnt
check fsck e2fsck -f -n /dev/vda
