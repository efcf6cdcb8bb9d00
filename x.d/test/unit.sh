# shellcheck shell=bash
# GROUP: cargo test, rustfmt, clippy, tidy, shellcheck (with --all also loom and cargo deny)
# Run by x.d/test.sh.

group_unit() {
    need_rust
    need_packages shellcheck e2fsprogs util-linux
    check_command rustfmt cargo fmt --all --check
    check_command tidy cargo run --quiet -p xtask -- tidy
    check_command shellcheck shellcheck -x -a x .ci/run x.d/test/*.sh x.d/lab/l1_run tests/guest/service/run
    check_command shellcheck-guest shellcheck -s dash -x tests/guest/init tests/guest/scripts/*.sh x.d/lab/*_init tests/guest/service/init
    check_command clippy cargo clippy --workspace --all-targets -- -D warnings
    # The groups foreign, frontend and hostile have the tests that need the daemon.
    check_command cargo-test cargo test --workspace --exclude tests
    check_command cargo-test-tests cargo test -p tests --lib
    as_root lost-flush cargo test -p backend --test faults -- --ignored lost
    as_root block-devices cargo test -p backend --test model -- --ignored block
    as_root held-devices cargo test -p backend --lib -- --ignored block_device
    loom
    on_a_line
    deny
}

# loom: what sidecores share, in every interleaving. It needs a build of its own.
loom() {
    if [[ -n $TEST_ALL || " $CASES " == *' loom '* ]]; then
        check_command loom loom_tests
    elif [[ -z $CASES ]]; then
        skipped loom 'a build of its own, a minute or two: ./x test --all, or ./x test unit/loom'
    fi
}

# on_a_line: the tests that run umwait or mwaitx.
on_a_line() {
    if grep -qwE 'waitpkg|mwaitx' /proc/cpuinfo; then
        check_command waiting-on-a-line cargo test -p guest_memory --lib -- --ignored line::
    elif [[ -z $CASES || " $CASES " == *' waiting-on-a-line '* ]]; then
        skipped waiting-on-a-line 'this processor has neither WAITPKG nor MONITORX'
    fi
}

# A filter that finds no test is no failure to cargo.
loom_tests() {
    local said
    said=$(RUSTFLAGS='--cfg loom' cargo test --target-dir "$BUILD/loom" -p schedule -p sidecore --lib loom_ 2>&1) || {
        printf '%s\n' "$said"
        return 1
    }
    printf '%s\n' "$said" | grep '^test '
    (($(grep -c '^test .*loom_.* ok$' <<<"$said") == 5)) || { echo 'not all of the five tests were run'; return 1; }
}

# as_root NAME COMMAND...: for tests that need a loop device.
as_root() {
    if ((EUID == 0)); then
        check_command "$@"
    elif [[ -z $CASES || " $CASES " == *" $1 "* ]]; then
        skipped "$1" 'needs root and a loop device'
    fi
}

# check_command NAME COMMAND...: if the command line asks for it; the others go on when it fails.
check_command() {
    [[ -z $CASES || " $CASES " == *" $1 "* ]] || return 0
    run_command "$@" || true
}

# Installing cargo-deny means building it for many minutes, so it is only used where it is there or
# everything was asked for.
deny() {
    [[ -z $CASES || " $CASES " == *' deny '* ]] || return 0
    if ! command -v cargo-deny >/dev/null; then
        if [[ -z $TEST_ALL ]]; then
            skipped deny 'cargo-deny is not installed, and building it takes minutes: ./x test --all'
            return 0
        fi
        run_command install-deny cargo install --locked --root "$BUILD/cargo" cargo-deny || return 0
        PATH=$BUILD/cargo/bin:$PATH
    fi
    run_command deny cargo deny check bans licenses sources || true
    if cargo deny fetch db >"$BUILD/deny.log" 2>&1; then
        run_command advisories cargo deny check advisories || true
    else
        skipped advisories "the advisory database cannot be fetched: $(tail -n 1 "$BUILD/deny.log")"
    fi
}
