# fio --verify straight on the disk: random writes of mixed sizes, then reads and writes mixed,
# from as many jobs as there are vCPUs. Every block is read back and its checksum compared. arg_times as much of each.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
mixed() {
    fio --ioengine=libaio --direct=1 --filename=/dev/vda --verify=crc32c --verify_fatal=1 \
        --do_verify=1 --name=mixed --rw=randwrite --iodepth=32 --size=$((16 * arg_times))m --offset_increment=48m \
        --numjobs=2 --bssplit=512/10:4k/50:12k/10:64k/20:256k/10 --output=/tmp/mixed.out
}
both_ways() {
    fio --ioengine=libaio --direct=1 --filename=/dev/vda --verify=crc32c --verify_fatal=1 \
        --verify_backlog=256 --name=both --rw=randrw --bs=4k --iodepth=64 --size=$((8 * arg_times))m \
        --output=/tmp/both.out
}
deep() {
    fio --ioengine=libaio --direct=1 --filename=/dev/vda --verify=crc32c --verify_fatal=1 \
        --do_verify=1 --name=deep --rw=write --bs=1m --iodepth=128 --size=$((32 * arg_times))m --output=/tmp/deep.out
}
ready fio
check fio-mixed-sizes mixed
check fio-read-write both_ways
check fio-large deep
