# A second disk is plugged in and pulled out while the first one works.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
fio --ioengine=libaio --direct=1 --filename=/dev/vda --name=meanwhile --rw=randrw --bs=4k \
    --iodepth=16 --size=32m --verify=crc32c --verify_fatal=1 --verify_backlog=128 \
    --output=/tmp/meanwhile.out --time_based --runtime=8 &
fio=$!
ready plug
check appears wait_for 30 test -b /dev/vdb
use() {
    fio --ioengine=libaio --direct=1 --filename=/dev/vdb --name=plugged --rw=randwrite --bs=4k \
        --iodepth=16 --size=8m --verify=crc32c --verify_fatal=1 --do_verify=1 --output=/tmp/plugged.out
}
check works use
ready unplug
check disappears wait_for 30 test ! -e /sys/block/vdb
ready plug-again
check appears-again wait_for 30 test -b /dev/vdb
check works-again use
if wait $fio; then result first-disk-undisturbed ok; else result first-disk-undisturbed FAIL "$(tail -n 3 /tmp/meanwhile.out)"; fi
