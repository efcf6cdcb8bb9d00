# The host makes the disk larger while it is in use; the guest sees it without doing anything.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
same size-before "$arg_before" "$(attribute vda size)"
fio --ioengine=libaio --direct=1 --filename=/dev/vda --name=meanwhile --rw=randwrite --bs=4k \
    --iodepth=16 --size=16m --time_based --runtime=6 --verify=crc32c --do_verify=0 \
    --output=/tmp/meanwhile.out &
fio=$!
grew() { [ "$(attribute vda size)" = "$arg_after" ]; }
ready resize
wait_for 30 grew
same size-after "$arg_after" "$(attribute vda size)"
if wait $fio; then result io-meanwhile ok; else result io-meanwhile FAIL "$(tail -n 3 /tmp/meanwhile.out)"; fi
last=$((arg_after / 8 - 1))
end() {
    dd if=/dev/urandom of=/tmp/block bs=4k count=1 2>/dev/null &&
        dd if=/tmp/block of=/dev/vda bs=4k seek=$last count=1 oflag=direct conv=fsync &&
        dd if=/dev/vda bs=4k skip=$last count=1 iflag=direct 2>/dev/null | cmp - /tmp/block
}
check new-end-works end
