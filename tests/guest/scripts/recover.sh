# The daemon is killed again and again while fio --verify runs in a file system, round after round,
# for arg_seconds; the guest must not notice.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
uptime() { cut -d. -f1 /proc/uptime; }
check mkfs mkfs.ext4 -q -F /dev/vda
check mount mount -t ext4 /dev/vda /mnt
round() {
    fio --ioengine=libaio --direct=1 --directory=/mnt --name=verify --rw=randwrite \
        --bssplit=512/5:4k/60:16k/20:64k/10:256k/5 --iodepth=32 --size=8m --numjobs=2 \
        --fsync=64 --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0 \
        --output=/tmp/verify.out
}
until=$(($(uptime) + arg_seconds))
rounds=0
ready fio
while [ "$(uptime)" -lt "$until" ]; do
    if ! round; then
        result fio-verify FAIL "in round $rounds: $(tail -n 4 /tmp/verify.out | tr '\n' ' ')"
        exit 1
    fi
    rounds=$((rounds + 1))
done
ready 'done'
result fio-verify ok "$rounds rounds"
check unmount umount /mnt
check fsck e2fsck -f -n /dev/vda
