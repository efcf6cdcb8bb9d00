# shellcheck shell=bash
# ./x demo: builds the program that shows it (tests/src/bin/demo.rs), and runs it. Sourced by ./x.

cmd_demo() {
    case ${1:-} in
        '') ;;
        remote) ((EUID == 0)) || die 'the machines of ./x demo remote are network namespaces, which need root' 'sudo ./x demo remote' ;;
        *) die "./x demo does not know '$1'" './x demo, or ./x demo remote' ;;
    esac
    need_rust
    need_guests
    need_guest_kernel
    need_sidecore
    say 'building the demo'
    run_cargo build --workspace --bin demo
    local program=${CARGO_TARGET_DIR:-$ROOT/target}/debug/demo
    # shellcheck disable=SC2064  # the program as it is now
    trap "'$program' --sweep" EXIT
    SIDECORE_BIN="$SIDECORE" SIDECORE_BUILD="$BUILD" "$program" "$@"
}
