# shellcheck shell=bash
# Guests that come to their kernel by firmware: iPXE with a kernel over HTTP.
# Cases are in x.d/test/foreign.sh. Sourced by ./x.
#
#   boot_words WORDS...               the command line of a guest's kernel

need_firmware() {
    need_packages ipxe-qemu dnsmasq-base
}

boot_words() {
    printf '%s' "console=ttyS0 quiet mitigations=off no_timer_check panic=-1" \
        " sysctl.kernel.hung_task_timeout_secs=40 $*"
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
