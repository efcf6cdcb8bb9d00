# shellcheck shell=bash
# Guests that come to their kernel by firmware: OVMF with a unified kernel, iPXE with a kernel over HTTP.
# Cases are in x.d/test/foreign.sh. Sourced by ./x.
#
#   unified_kernel FILE BYTES WORDS   kernel, initramfs and command line as one EFI program of BYTES at least;
#                                     the guest checks that all of it came
#   esp_of IMAGE SIZE FILE            a FAT file system on the whole image; FILE is what removable media boot
#   ovmf_boots                        the next guest is started by OVMF
#   boot_words WORDS...               the command line of a guest's kernel

GUEST_STUB=/usr/lib/systemd/boot/efi/linuxx64.efi.stub

need_firmware() {
    need_packages ovmf systemd-boot-efi mtools dosfstools binutils ipxe-qemu dnsmasq-base
}

boot_words() {
    printf '%s' "console=ttyS0 quiet mitigations=off no_timer_check panic=-1" \
        " sysctl.kernel.hung_task_timeout_secs=40 $*"
}

unified_kernel() {
    local file=$1 bytes=$2 words=$3 tree=$SERVER_DIR/pad sum
    # It runs little beside busybox: noise is most of what is loaded.
    local GUEST_PROGRAMS=(/usr/bin/cksum)
    guest_tree "$tree" "$BUILD/guest/kernel" virtio_pci virtio_blk
    # Noise: no part of it is another one's, so a slice that goes astray is seen.
    head -c "$bytes" /dev/urandom >"$tree/pad"
    sum=$(cksum <"$tree/pad" | cut -d' ' -f1)
    pack_tree "$tree" "$SERVER_DIR/uki.initrd"
    boot_words "$words arg.sum=$sum" >"$SERVER_DIR/uki.cmdline"
    # Where systemd's stub wants its sections (systemd-stub(7)).
    objcopy --add-section ".osrel=/etc/os-release" --change-section-vma .osrel=0x20000 \
        --add-section ".cmdline=$SERVER_DIR/uki.cmdline" --change-section-vma .cmdline=0x30000 \
        --add-section ".linux=$KERNEL" --change-section-vma .linux=0x2000000 \
        --add-section ".initrd=$SERVER_DIR/uki.initrd" --change-section-vma .initrd=0x4000000 \
        "$GUEST_STUB" "$file"
}

esp_of() {
    truncate -s "$2" "$1"
    mkfs.vfat -F 32 "$1" >"$SERVER_DIR/mkfs.vfat"
    MTOOLS_SKIP_CHECK=1 mmd -i "$1" ::EFI ::EFI/BOOT
    MTOOLS_SKIP_CHECK=1 mcopy -i "$1" "$3" ::EFI/BOOT/BOOTX64.EFI
}

ovmf_boots() {
    cp /usr/share/OVMF/OVMF_VARS_4M.fd "$SERVER_DIR/vars.fd"
    GUEST_BOOT=(
        -drive 'if=pflash,format=raw,unit=0,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd'
        -drive "if=pflash,format=raw,unit=1,file=$SERVER_DIR/vars.fd")
}

# netboot_serve NAMESPACE INTERFACE ADDRESS WORDS: DHCP and TFTP there, a script for iPXE, and the kernel over HTTP.
netboot_serve() {
    local inside=(ip netns exec "$1") folder=$SERVER_DIR/netboot
    mkdir -p "$folder"
    ln -s "$KERNEL" "$folder/vmlinuz"
    ln -s "$INITRAMFS" "$folder/initramfs"
    printf '#!ipxe\nkernel http://%s/vmlinuz %s\ninitrd http://%s/initramfs\nboot\n' \
        "$3" "$(boot_words "$4")" "$3" >"$folder/boot.ipxe"
    "${inside[@]}" busybox httpd -f -p "$3:80" -h "$folder" >"$SERVER_DIR/httpd" 2>&1 3>&- &
    own "$!"
    "${inside[@]}" dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --user=root --interface="$2" \
        --bind-dynamic --dhcp-range="${3%.*}.50,${3%.*}.60,1h" --dhcp-boot=boot.ipxe --enable-tftp \
        --tftp-root="$folder" --leasefile-ro --pid-file= --log-facility="$SERVER_DIR/dnsmasq" \
        >"$SERVER_DIR/dnsmasq.said" 2>&1 3>&- &
    own "$!"
}
