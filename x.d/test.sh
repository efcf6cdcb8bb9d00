# shellcheck shell=bash
# ./x test: installs what the groups that were asked for need, and hands over to `suite` (tests/src/suite), which
# builds, runs and sums up. Sourced by ./x.

# Groups whose cases have guests.
GUEST_GROUPS=(guest net foreign recover remote migrate durable)

cmd_test() {
    local word groups=() command=run is_number=
    for word; do
        if [[ -n $is_number ]]; then
            is_number=
            continue
        fi
        case $word in
            --lanes) is_number=yes ;;
            --list | --help | -h) command=tell ;;
            --all) TEST_ALL=yes ;;
            -*) ;;
            *) groups+=("${word%%/*}") ;;
        esac
    done
    need_rust
    if [[ $command == run ]]; then
        ((${#groups[@]})) || groups=(unit "${GUEST_GROUPS[@]}" frontend hostile fuzz service bench ${TEST_ALL:+lab mutants})
        for word in "${groups[@]}"; do need_for_group "$word"; done
    fi
    build_suite
    "${CARGO_TARGET_DIR:-$ROOT/target}/debug/suite" "$@"
}

# need_for_group GROUP: its packages, and the guest's kernel and initramfs.
need_for_group() {
    if [[ " ${GUEST_GROUPS[*]} " == *" $1 "* ]]; then
        need_guests
        need_guest_kernel
    fi
    case $1 in
        unit) need_packages shellcheck e2fsprogs util-linux ;;
        guest)
            need_packages fdisk libxenmisc4.17 xz-utils
            need_newest_kernel
            ;;
        net) need_testpmd ;;
        foreign) need_packages ovmf systemd-boot-efi mtools dosfstools binutils ipxe-qemu dnsmasq-base ;;
        hostile) need_packages util-linux mount ;;
        fuzz) need_packages g++ ;;
        recover) [[ -z ${TEST_ALL:-} ]] || need_packages xfsprogs btrfs-progs ;;
        remote)
            need_packages iproute2 util-linux xz-utils binutils
            need_lab_kernel
            [[ -z ${TEST_ALL:-} ]] || need_packages tshark
            ;;
        migrate) need_packages qemu-utils ;;
        service)
            need_packages systemd xz-utils qemu-system-x86 binutils cpio socat
            need_lab_kernel
            ;;
        durable) need_packages e2fsprogs util-linux mount dmsetup binutils cpio ;;
        bench) need_packages valgrind util-linux jq ;;
        lab) need_packages jq ;;
        mutants) need_packages patch ;;
    esac
}

build_suite() {
    # As `suite` builds the tests: what it is made of is built once.
    local -x RUSTC_WORKSPACE_WRAPPER=x.d/compiler
    # rustup has a program of that name also where it has none to run.
    clippy-driver --version >/dev/null 2>&1 || rustup component add clippy >"$BUILD/rustup.log" 2>&1 ||
        die 'clippy, which compiles the tests, is not installed' 'rustup component add clippy'
    say 'building the runner of the tests'
    run_cargo build --workspace --bin suite
}

# cmd_test_shell GROUP [CASE...]: cases that are still shell, for `suite`; what they find goes into a file in TEST_DIR.
cmd_test_shell() {
    [[ -n ${TEST_DIR:-} && -f $ROOT/x.d/test/${1:-}.sh ]] || die "no group ${1:-} in shell" './x test --list'
    GROUP=$1
    shift
    CASES=$*
    OUTCOMES=$TEST_DIR/outcomes.tsv
    touch "$OUTCOMES"
    # shellcheck source=/dev/null
    . "$ROOT/x.d/test/$GROUP.sh"
    "group_$GROUP"
    [[ -s $OUTCOMES ]] || failed group "no case ran${CASES:+ (is there a case $CASES?)}"
}
