# The daemon and a small front-end inside the guest, on devices of the device mapper: /dev/vda is
# what they map, /dev/vdb takes the log. What the front-end says goes to the console.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
while read -r module; do
    insmod "/mapper/modules/$module" 2>/dev/null
done </mapper/modules/order
mkdir -p /dev/mapper
[ -e /dev/mapper/control ] || mknod /dev/mapper/control c 10 236
export SIDECORE_BIN=/mapper/sidecore DM_DISABLE_UDEV=1
if /mapper/dm_client >/tmp/client 2>&1; then
    grep '^dm-' /tmp/client | while read -r line; do result "${line%%:*}-$((number = number + 1))" ok "${line#*: }"; done
else
    result dm-client FAIL "$(tail -n 6 /tmp/client | tr '\n' ' ')"
fi
cat /tmp/client
