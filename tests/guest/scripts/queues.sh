# As many queues as were asked for, each with its own vCPU's requests.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
same queues "$arg_queues" "$(find /sys/block/vda/mq -mindepth 1 -maxdepth 1 | wc -l)"
load() {
    fio --ioengine=libaio --direct=1 --filename=/dev/vda --name=each --rw=randwrite --bs=4k \
        --iodepth=4 --size=1m --offset_increment=1m --numjobs="$arg_jobs" \
        --cpus_allowed=0-$((arg_jobs - 1)) --cpus_allowed_policy=split \
        --verify=crc32c --verify_fatal=1 --do_verify=1 --output=/tmp/each.out --group_reporting
}
check fio-on-each-cpu load
