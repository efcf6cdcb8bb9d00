# arg_mib MiB by dd, past the guest's page cache, from one disk to another; the checksum of what
# came to lie there is said, and the host compares it.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
copy() { dd if=/dev/vda of=/dev/vdb bs=1M count="$arg_mib" iflag=direct oflag=direct conv=fsync; }
check copy copy
echo 3 >/proc/sys/vm/drop_caches
same checksum "$arg_cksum" "$(cksum /dev/vdb | cut -d' ' -f1)"
