# Does what the host says, one command a line of the third serial port, until it says `end`:
# `NUMBER COMMAND`, with carriage returns for the command's line ends. Answers with `OUT NUMBER LINE` for each line of the command's output and
# `STATUS NUMBER STATUS` when it is over. The host's side is `testing::vm`.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
stty -F /dev/ttyS2 raw -echo
# What a test of networks takes in every guest: who it is, and that an address is answered for only
# where it is.
echo '127.0.0.1 localhost' >/etc/hosts
echo 'root:x:0:0:root:/:/bin/sh' >/etc/passwd
echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
ip link set lo up
exec 4</dev/ttyS2
ready orders
while read -r number words <&4; do
    [ "$words" != end ] || break
    # To a file: what a command leaves running in the background must not hold the answer.
    # The whole programs, where busybox has lesser ones that its shell prefers.
    {
        echo 'ip() { /usr/bin/ip "$@"; }; ping() { /usr/bin/ping "$@"; }'
        echo "$words" | tr '\r' '\n'
    } >/tmp/order
    sh /tmp/order >/tmp/said 2>&1 </dev/null 4<&-
    status=$?
    tail -c 16000 /tmp/said | awk -v number="$number" '{ print "OUT", number, $0 }' >&3
    echo "STATUS $number $status" >&3
done
