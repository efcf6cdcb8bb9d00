# What a file system does for a guest, each step told of when its fsync has ended, for arg_seconds, while others work
# that ask for no sync. The disk may have lost its power at any moment (tests/src/suite/cases/durable/cuts.rs knows what each
# step has written). The disk is as it is left: not unmounted.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
uptime() { cut -d. -f1 /proc/uptime; }
# lines WORD NUMBER: as many as the number asks for, each of them the same.
lines() { yes "$1 $2" | head -n $(($2 * 37 % 400 + 1)); }
# fsync PATH...: files and folders. busybox syncs everything or nothing.
fsync() { /usr/bin/sync "$@"; }
database() { sqlite3 -batch -bail "/mnt/$1.db" "$2"; }

# Whatever is not asked for by name: files that grow, move and go.
noise() {
    noise_number=0
    while [ -e /tmp/noise ]; do
        noise_number=$((noise_number + 1))
        lines noise "$noise_number" >"/mnt/noise/$((noise_number % 23))"
        lines more "$noise_number" >>"/mnt/noise/$((noise_number % 7))"
        mv "/mnt/noise/$((noise_number % 11))" "/mnt/noise/moved-$((noise_number % 5))" 2>/dev/null
        rm -f "/mnt/noise/$((noise_number % 13))"
    done
}

check mkfs mkfs.ext4 -q -F /dev/vda
check mount mount -t ext4 -o "$arg_options" /dev/vda /mnt
mkdir /mnt/noise /mnt/files
: >/mnt/log
check tables database rows 'CREATE TABLE t(n INTEGER PRIMARY KEY, text)' &&
    check tables-wal database wal 'PRAGMA journal_mode=WAL; CREATE TABLE t(n INTEGER PRIMARY KEY, text)'
sync
: >/tmp/noise
noise &
until=$(($(uptime) + arg_seconds))
number=0
ready begun
set -e
while [ "$(uptime)" -lt "$until" ]; do
    number=$((number + 1))
    lines file "$number" >"/mnt/files/$number"
    fsync "/mnt/files/$number" /mnt/files
    ready "created $number"
    echo "line $number" >>/mnt/log
    fsync /mnt/log
    ready "appended $number"
    lines version "$number" >/mnt/current.new
    fsync /mnt/current.new
    mv /mnt/current.new /mnt/current
    fsync /mnt
    ready "renamed $number"
    database rows "PRAGMA synchronous=EXTRA; INSERT INTO t VALUES($number, printf('%0700d', $number))"
    ready "inserted $number"
    database wal "PRAGMA synchronous=FULL; INSERT INTO t VALUES($number, printf('%0700d', $number))" >/dev/null
    ready "logged $number"
done
rm /tmp/noise
wait
result records ok "$number rounds of five records"
