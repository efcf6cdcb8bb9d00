# What the kernel believes of the write cache, and a load that syncs now and then; the host counts
# what it was asked to make stable. arg.cache: back, or through (chosen here, by the guest).
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
same write-cache-at-first 'write back' "$(attribute vda queue/write_cache)"
if [ "$arg_cache" = through ]; then
    # virtio_blk's own file: the device is told. queue/write_cache is the block layer's opinion.
    echo 'write through' >/sys/block/vda/cache_type
    same write-cache-chosen 'write through' "$(attribute vda queue/write_cache)"
fi
load() {
    fio --ioengine=libaio --direct=1 --filename=/dev/vda --name=load --rw=randwrite --bs=4k \
        --size=4m --iodepth=8 --fsync=64 --end_fsync=1 --output=/tmp/load.out
}
check load load
