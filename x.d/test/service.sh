# shellcheck shell=bash
# GROUP: the packaged unit under systemd: start, upgrade, reload, clock set back, death, wrong file, a link, another user, stop (root)
# In an emulated machine with this one's root, of which it changes nothing. Run by x.d/test.sh.

SERVICE=$BUILD/service
SERVICE_MODULES=(virtio_pci 9pnet_virtio 9p overlay)
SERVICE_SECONDS=900

group_service() {
    if ((EUID != 0)); then
        skipped unit 'needs root: the machine reads all of the root file system'
        return 0
    fi
    need_guests
    need_packages systemd xz-utils qemu-system-x86
    need_sidecore
    need_lab_kernel
    mkdir -p "$SERVICE/out"
    cargo_quietly build --profile driver -p tests --bin clock_client
    need_service_image
    service_machine
}

need_service_image() {
    local tree=$SERVICE/tree module
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,modules}
    cp /bin/busybox "$tree/bin/busybox"
    cp "$ROOT/x.d/service/init" "$tree/init"
    : >"$tree/modules/order"
    for module in "${SERVICE_MODULES[@]}"; do
        copy_module "$module" "$tree" "$LAB/kernel"
    done
    pack_tree "$tree" "$SERVICE/initramfs.cpio"
}

# service_machine: from its start to its end; each thing that it tried is an outcome.
service_machine() {
    local pid status=0 word name detail
    rm -f "$SERVICE"/out/*
    # Times are judged there as here.
    [[ -z $TEST_ALL ]] || touch "$SERVICE/out/judge"
    cp "$SIDECORE" "$SERVICE/out/sidecore"
    strip -o "$SERVICE/out/clock_client" "${CARGO_TARGET_DIR:-$ROOT/target}/driver/clock_client"
    printf '[[disk]]\nid = "vm1"\nbackend = "memory"\nsize = "8M"\n' >"$SERVICE/out/sidecore.toml"
    say "service: starting a machine with systemd"
    setpriv --pdeathsig KILL qemu-system-x86_64 -name service -accel "$(accelerator)" -cpu max,la57=off -smp 2 -m 1500 \
        -nodefaults -no-user-config -no-reboot -display none \
        -kernel "$LAB/vmlinuz" -initrd "$SERVICE/initramfs.cpio" \
        -append "console=ttyS0 quiet mitigations=off no_timer_check panic=-1 systemd.show_status=false service.root=$ROOT service.out=$SERVICE/out" \
        -serial "file:$SERVICE/console" \
        -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
        -virtfs "local,path=$SERVICE/out,mount_tag=out,security_model=none" >"$SERVICE/qemu" 2>&1 3>&- &
    pid=$!
    own "$pid"
    end_within "$SERVICE_SECONDS" "$pid" || status=$?
    disown_pid "$pid"
    while read -r word name detail; do
        case $word in
            RESULT)
                case $detail in
                    ok*) passed "$name" "${detail#ok}" ;;
                    *) failed "$name" "${detail#FAIL }"
                        show_tail "$SERVICE/out/status-$name" 'what systemd says' 40 ;;
                esac ;;
            END) word=end; break ;;
        esac
    done < <(cat "$SERVICE/out/results" 2>/dev/null)
    if [[ $word != end ]]; then
        failed machine "it did not come to its end (QEMU: status $status)"
        show_tail "$SERVICE/console" 'its console' 40
        show_tail "$SERVICE/qemu" 'QEMU'
    fi
    rm -f "$SERVICE"/out/{sidecore,clock_client}
}
