# A disk that may not be written: the guest knows, and a write is refused.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
same getro 1 "$(blockdev --getro /dev/vda)"
same ro-attribute 1 "$(attribute vda ro)"
check reads dd if=/dev/vda of=/dev/null bs=1M count=8 iflag=direct
if dd if=/dev/zero of=/dev/vda bs=4k count=1 oflag=direct 2>/tmp/write.out; then
    result write-refused FAIL "the write went through"
else
    result write-refused ok
fi
