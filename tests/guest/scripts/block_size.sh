# A disk with blocks of 4,096 bytes that was partitioned with them on the host.
# shellcheck source=tests/guest/scripts/lines.sh disable=SC2154
. /scripts/lines.sh
same logical 4096 "$(attribute vda queue/logical_block_size)"
same physical 4096 "$(attribute vda queue/physical_block_size)"
same getss 4096 "$(blockdev --getss /dev/vda)"
check partition test -b /dev/vda1
# In sectors of 512, whatever the blocks are.
same first "$arg_first" "$(cat /sys/block/vda/vda1/start)"
same size "$arg_size" "$(cat /sys/block/vda/vda1/size)"
check file-system mkfs.ext4 -q -F /dev/vda1
check mount mount /dev/vda1 /mnt
check write dd if=/dev/urandom of=/mnt/file bs=1M count=4 conv=fsync
check unmount umount /mnt
