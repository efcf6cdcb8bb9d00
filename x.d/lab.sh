# shellcheck shell=bash
# ./x lab: guests on real KVM, and what their I/O costs (docs/decisions/0008-lab.md). On a host with
# hardware KVM they run on it; elsewhere in L1, an emulated machine. Sourced by ./x.

LAB=$BUILD/lab
# Modules of L1: KVM, what shares files with the host, what the kernel's own servers of I/O need.
L1_MODULES=(virtio_pci 9pnet_virtio 9p overlay kvm-amd tun tap bridge vhost_net null_blk brd)
# Modules of L2: what its devices need, the emulated ones too.
L2_MODULES=(virtio_pci virtio_blk virtio_net ata_piix sd_mod e1000)
# What serves in L2, besides nginx.
L2_PROGRAMS=(/usr/bin/memcached)
# What the emulated machine may write to a file, of which its console is one, and the share of results has others.
L1_FILE_MAX=$((64 << 20))
# A machine that hangs or dies is ended, and started anew, until so many in a row have finished no configuration.
L1_TRIES=3
# L1 leaves a beat in its share every few seconds; without one for so long it hangs. The first comes when it has booted.
L1_SILENT_S=60
L1_BOOTS_S=120

# What can be measured, in the order of the report.
LAB_EXPERIMENTS=(
    'smoke         a request at a time, of a disk and by UDP: QEMU, vhost-net, Sidecore'
    'exits         exits by cause of all loads with all configurations, one guest (ES2 table I, figure 5; ELVIS 4.3)'
    'quota         exits against the quota of policy es2, sending UDP and TCP (ES2 figure 4)'
    'block-guests  disks of 1, 2 and 4 guests, 4+4 threads of random 4 KiB each, on RAM disks (ELVIS figure 6)'
    'net-guests    UDP request-response and TCP streams of 1, 2 and 4 guests (ELVIS figures 5 and 4)'
    'mixed         a guest that waits for answers beside 0 to 3 that stream (ELVIS figure 7)'
    'ablation      what affinity, one thread for all queues, and polling each bring (ELVIS figure 8)'
    'merged        exits of a 4 KiB request: IDE, virtio, Sidecore (kvm-guest-io 3.1)'
    'servers       memcached and an HTTP server under load (ELVIS figure 4; ES2 figures 8 and 9)'
    'redirect      answers of a guest whose four vCPUs share a CPU, with redirection and without (ES2 figure 7)'
)

# Who serves the guests' devices; a test holds it to lab/src/place/configurations.rs.
LAB_CONFIGURATIONS=(
    qemu qemu-unpinned qemu-iothread qemu-storage-daemon ide
    sidecore sidecore-adaptive sidecore-es2 sidecore-notify
    vhost-net vhost-net-unpinned vhost-net-busy e1000 sidecore-unmoderated
    es2-quota-2 es2-quota-4 es2-quota-8 es2-quota-16 es2-quota-32
    sidecore-stay sidecore-redirect
)

lab_usage() {
    cat <<END
./x lab [EXPERIMENT]... [--quick] [--only NAME] [--json]

What a guest's I/O costs on real KVM, counted by the kernel that runs it, with QEMU, vhost-net and Sidecore. On hardware
KVM the guests run on it; elsewhere on an emulated machine with KVM, whose counts hold and whose time does not: what takes
time is then shown as ratios only. Tables on the terminal, plots in build/lab/report.html.

experiments (without a name: exits)
$(printf '  %s\n' "${LAB_EXPERIMENTS[@]}")

options
  --quick      each number once, half the operations; of exits fewer configurations
  --only NAME  configurations whose name begins so
  --json       one JSON object a line, on standard output

configurations
$(fold -s -w 100 <<<"${LAB_CONFIGURATIONS[*]}" | sed 's/^/  /; s/ *$//')

examples
  ./x lab smoke
  ./x lab exits quota --quick
  ./x lab exits --only sidecore --json >rows.json
END
}

cmd_lab() {
    local report=() experiments=()
    LAB_ARGUMENTS=() L1_LIMIT=5400
    while (($#)); do
        case $1 in
            --help | -h) lab_usage; return ;;
            --json) report+=(--json) ;;
            --quick) LAB_ARGUMENTS+=(--quick) L1_LIMIT=900 ;;
            --only)
                (($# > 1)) || die './x lab --only needs a name' 'name a configuration: ./x lab --only sidecore'
                [[ " ${LAB_CONFIGURATIONS[*]}" == *" $2"* ]] ||
                    die "./x lab has no configuration whose name begins with '$2'" "choose of ${LAB_CONFIGURATIONS[*]}"
                LAB_ARGUMENTS+=(--only "$2")
                shift ;;
            -*) die "./x lab does not know $1" './x lab --help' ;;
            *)
                printf '%s\n' "${LAB_EXPERIMENTS[@]%% *}" | grep -qxF -e "$1" ||
                    die "./x lab has no experiment '$1'" "choose of ${LAB_EXPERIMENTS[*]%% *}"
                [[ " ${experiments[*]} " == *" $1 "* ]] || experiments+=("$1") ;;
        esac
        shift
    done
    LAB_ARGUMENTS+=("${experiments[@]}")
    ((${#experiments[@]} < 2)) || L1_LIMIT=$((L1_LIMIT * ${#experiments[@]}))
    mkdir -p "$LAB"
    exec 9>"$LAB/lock"
    flock -n 9 || die 'the lab runs already' 'wait for its end, or end that ./x lab'
    need_lab
    lab_run
    has_kvm || report+=(--emulated)
    [[ -z $L1_WAITED ]] || report+=(--waited "$L1_WAITED")
    "$LAB/out/lab" report "${report[@]}" --retried "$LAB_RETRIED" --html "$LAB/report.html" "$LAB/out/rows.json"
    [[ -z $LAB_FAILED ]] || die "$LAB_FAILED" 'what was measured is in the report; read what the lab said above'
}

# need_lab: packages, programs, images.
need_lab() {
    need_guests
    need_packages xz-utils qemu-system-x86 qemu-system-common qemu-utils libssl3 libpcre2-8-0 zlib1g
    need_sidecore
    say 'building the lab'
    cargo_quietly build --release -p lab
    mkdir -p "$LAB/out"
    # Not where the next build writes while a guest runs it.
    cp --remove-destination "${CARGO_TARGET_DIR:-$ROOT/target}/release/lab" "$LAB/out/lab"
    need_lab_kernel
    need_nginx
    need_l2_image
}

# has_kvm: stock guests run on this host's KVM.
has_kvm() { [[ $(accelerator) == kvm ]]; }

# lab_run: leaves rows in out/rows.json, in LAB_RETRIED how often something was started once more, and in LAB_FAILED
# what is wrong if rows are missing. Ends ./x if there are none at all.
lab_run() {
    rm -f "$LAB"/out/{rows.json,said,status}
    L1_WAITED='' L1_RAN=0 L1_HELD=0 LAB_RETRIED=0 LAB_FAILED=''
    printf '%s\n' run --sidecore "$SIDECORE" --kernel "$LAB/vmlinuz" --initramfs "$LAB/l2.cpio" \
        --dir /run/sidecore-lab --rows "$LAB/out/rows.json" "${LAB_ARGUMENTS[@]}" >"$LAB/out/arguments"
    if has_kvm; then
        local arguments
        mapfile -t arguments <"$LAB/out/arguments"
        # In the foreground: an interrupt reaches it, too.
        "$LAB/out/lab" "${arguments[@]}" 2>&1 | tee -i "$LAB/out/said" >&2 ||
            LAB_FAILED='the lab could not measure all of it'
        count_retries
    else
        need_l1_image
        lab_run_in_l1
    fi
    [[ -z $LAB_FAILED ]] || grep -qs '"name":' "$LAB/out/rows.json" || die "$LAB_FAILED" 'read what the lab said above'
}

# lab_run_in_l1: what an L1 that died has finished stays in out/rows.json, and the next one skips it.
lab_run_in_l1() {
    local try done_before
    for ((try = 1; try <= L1_TRIES; try++)); do
        [[ -z $LAB_FAILED ]] || LAB_RETRIED=$((LAB_RETRIED + 1))
        done_before=$(stands_done)
        l1_once
        count_retries
        case $(cat "$LAB/out/status" 2>/dev/null) in
            0)
                LAB_FAILED=''
                return ;;
            '')
                # One that finished something is the first of a new row. One that had no more time is not.
                [[ $L1_END == *' in '* ]] || (($(stands_done) <= done_before)) || try=0
                LAB_FAILED="L1 $L1_END"
                say "$LAB_FAILED ($((try == 0 ? L1_TRIES : L1_TRIES - try)) tries are left)"
                show_tail "$LAB/l1.console" 'the console of L1'
                ;;
            *)
                LAB_FAILED='the lab could not measure all of it'
                return ;;
        esac
    done
}

# stands_done: how many configurations have their rows, or have failed for good.
stands_done() {
    local all
    all=$(grep -c '"stand_done":.*}$' "$LAB/out/rows.json" 2>/dev/null) || true
    printf '%s\n' "${all:-0}"
}

# count_retries: adds how often a configuration was started anew, which the lab says.
count_retries() {
    local times
    times=$(sed -nE 's/.*\(time ([0-9]+) of ([0-9]+)\).*/\1 \2/p' "$LAB/out/said" 2>/dev/null | awk '$1 < $2' | wc -l) || true
    LAB_RETRIED=$((LAB_RETRIED + ${times:-0}))
}

# l1_once: L1 from its start to its end, with what the lab says in it on stderr meanwhile.
l1_once() {
    local began beat shown=0 pid ran=0 held=0
    L1_END=died
    rm -f "$LAB"/out/{said,status}
    touch -d "+$((L1_BOOTS_S - L1_SILENT_S)) seconds" "$LAB/out/beat"
    say 'starting L1: no KVM of hardware here, so an emulated machine with KVM'
    # Its threads have names: l1_waited looks for those of CPUs.
    # It dies with this script, however that ends. Without virtual GIF, with which it may stand still more often, and with four levels of pages, which is faster.
    prlimit --fsize="$L1_FILE_MAX" setpriv --pdeathsig KILL qemu-system-x86_64 -name l1,debug-threads=on -accel tcg,thread=multi -cpu max,la57=off,vgif=off -smp 2 -m "${L1_MEMORY_MIB:-4000}" \
        -nodefaults -no-user-config -no-reboot -display none \
        -kernel "$LAB/vmlinuz" -initrd "$LAB/l1.cpio" \
        -append "console=ttyS0 quiet mitigations=off clocksource=tsc tsc=reliable no_timer_check panic=-1 lab.root=$ROOT lab.out=$LAB/out" \
        -serial "file:$LAB/l1.console" \
        -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
        -virtfs "local,path=$LAB/out,mount_tag=out,security_model=none" >"$LAB/l1.qemu" 2>&1 3>&- &
    pid=$!
    own "$pid"
    began=$SECONDS
    while alive "$pid"; do
        show_said
        l1_waited "$pid"
        if ((SECONDS - began >= ${L1_SECONDS:-$L1_LIMIT})); then
            L1_END="did not come to its end in ${L1_SECONDS:-$L1_LIMIT} s"
            kill -KILL "$pid" 2>/dev/null || true
            break
        elif beat=$(stat -c %Y "$LAB/out/beat" 2>/dev/null) && (($(date +%s) - beat > L1_SILENT_S)); then
            L1_END="hung: it gave no sign for $L1_SILENT_S s"
            kill -KILL "$pid" 2>/dev/null || true
            break
        fi
        sleep 0.3
    done
    wait "$pid" 2>/dev/null || true
    disown_pid "$pid"
    L1_RAN=$((L1_RAN + ran)) L1_HELD=$((L1_HELD + held))
    show_said
}

# show_said: lines of out/said after the first $shown, as progress.
show_said() {
    local lines line
    lines=$(wc -l 2>/dev/null <"$LAB/out/said") || lines=0
    ((lines > shown)) || return 0
    sed -n "$((shown + 1)),${lines}p" "$LAB/out/said" | LC_ALL=C tr -cd '\t\n\040-\176' | while read -r line; do say "$line"; done
    shown=$lines
}

# l1_waited PID: sets L1_WAITED to the percentage that its CPUs, and those of an L1 before it, waited for one of the host,
# of the time in which they had work. The last look before its end counts; ran and held are its own, in ns.
l1_waited() {
    local task name one two all waited ran_now=0 held_now=0
    for task in "/proc/$1/task"/*; do
        {
            read -r name <"$task/comm" && [[ $name == CPU* ]] && read -r one two _ <"$task/schedstat"
        } 2>/dev/null || continue
        ran_now=$((ran_now + one)) held_now=$((held_now + two))
    done
    # None of them are left when it has just ended.
    ((ran_now > 0)) || return 0
    ran=$ran_now held=$held_now
    all=$((L1_RAN + ran + L1_HELD + held)) waited=$((L1_HELD + held))
    printf -v L1_WAITED '%d.%d' $((waited * 100 / all)) $((waited * 1000 / all % 10))
}

# need_lab_kernel: of L1 and L2, and of other machines that share files. Not the test guest's: that has neither 9p nor KVM.
need_lab_kernel() {
    [[ ! -f $LAB/vmlinuz ]] || return 0
    local package
    mkdir -p "$LAB"
    apt_lists
    package=$(apt-cache depends linux-image-6.12-amd64 2>/dev/null |
        awk '/Depends: linux-image-/ { print $2; exit }') || true
    [[ -n $package ]] || die 'apt knows no package linux-image-6.12-amd64' \
        'sudo apt-get update, then run this again (Debian 12 is expected)'
    unpack_package "$package" "$LAB/kernel"
    cp "$LAB"/kernel/boot/vmlinuz-* "$LAB/vmlinuz"
}

# need_nginx: unpacked only, so that none is started on this host.
need_nginx() {
    [[ -x $LAB/nginx/usr/sbin/nginx ]] || unpack_package nginx "$LAB/nginx"
    ! ldd "$LAB/nginx/usr/sbin/nginx" | grep 'not found' >&2 ||
        die 'nginx lacks these libraries' 'install the Debian packages that have them'
}

need_l1_image() {
    local stamp tree=$LAB/l1.tree
    stamp=$(cat "$ROOT/x.d/lab.sh" "$ROOT/x.d/image.sh" "$ROOT/x.d/lab/l1_init" | sha256sum)
    [[ -f $LAB/l1.cpio && $(cat "$LAB/l1.stamp" 2>/dev/null) == "$stamp" ]] && return 0
    say 'packing L1: busybox, and modules for KVM and 9p'
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,modules}
    cp /bin/busybox "$tree/bin/busybox"
    cp "$ROOT/x.d/lab/l1_init" "$tree/init"
    : >"$tree/modules/order"
    local module
    for module in "${L1_MODULES[@]}"; do
        copy_module "$module" "$tree" "$LAB/kernel"
    done
    pack_tree "$tree" "$LAB/l1.cpio"
    printf '%s\n' "$stamp" >"$LAB/l1.stamp"
}

# need_l2_image: the guest that is measured: modules for its devices, the lab, and servers.
need_l2_image() {
    local tree=$LAB/l2.tree
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,usr/bin,usr/sbin,modules,etc,run,tmp,www,var/lib/nginx,var/log/nginx}
    cp /bin/busybox "$tree/bin/busybox"
    cp "$ROOT/x.d/lab/l2_init" "$tree/init"
    cp "$LAB/out/lab" "$tree/bin/lab"
    copy_libraries "$tree/bin/lab" "$tree"
    local program module
    for program in "${L2_PROGRAMS[@]}"; do
        copy_program "$program" "$tree"
    done
    cp "$LAB/nginx/usr/sbin/nginx" "$tree/usr/sbin/nginx"
    copy_libraries "$tree/usr/sbin/nginx" "$tree"
    cp "$ROOT/x.d/lab/l2_nginx.conf" "$tree/etc/nginx.conf"
    printf 'root:x:0:0::/:/bin/sh\n' >"$tree/etc/passwd"
    printf 'root:x:0:\n' >"$tree/etc/group"
    head -c 1024 /dev/zero | tr '\0' x >"$tree/www/1k"
    head -c 8192 /dev/zero | tr '\0' x >"$tree/www/8k"
    : >"$tree/modules/order"
    for module in "${L2_MODULES[@]}"; do
        copy_module "$module" "$tree" "$LAB/kernel"
    done
    pack_tree "$tree" "$LAB/l2.cpio"
}
