# shellcheck shell=bash
# ./x build, bench, sim and clean: what is made with cargo. Sourced by ./x.

# need_sidecore: the daemon as the sources are now.
need_sidecore() {
    [[ -z $SIDECORE_GIVEN ]] || return 0
    need_rust
    say 'building the daemon (the first time takes minutes)'
    run_cargo build --release -p sidecore-bin
}

# run_cargo ARGUMENTS...: with cargo's own progress on a terminal; elsewhere with a line each ten seconds, and its words
# when it fails.
run_cargo() {
    local pid status=0 log=$BUILD/cargo.log looks=0
    if [[ -t 2 ]]; then
        cargo "$@" || die "cargo $1 failed" 'mend what it says above'
        return
    fi
    cargo "$@" >"$log" 2>&1 &
    pid=$!
    # shellcheck disable=SC2064  # the number as it is now
    trap "kill $pid 2>/dev/null || true" EXIT
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.5
        looks=$((looks + 1))
        ((looks % 20)) || say "$(grep -c Compiling "$log") crates: $(tail -n 1 "$log")"
    done
    wait "$pid" || status=$?
    trap - EXIT
    ((status == 0)) || {
        show_tail "$log" "the end of what cargo $1 said" 60
        die "cargo $1 failed" "cargo $*"
    }
}

# need_tune: the program for guests, which needs nothing of theirs.
need_tune() {
    local host
    need_rust
    host=$(rustc -vV | sed -n 's/^host: //p')
    say 'building the program for guests (the first time takes a minute or two)'
    run_cargo build --release -p sidecore-tune --target "$host" --config guest/tune/static.toml
    TUNE=${CARGO_TARGET_DIR:-$ROOT/target}/$host/release/sidecore-tune
}

cmd_build() {
    need_sidecore
    need_tune
    say "built $SIDECORE, and for guests $TUNE"
}

# cmd_bench NAME OPTIONS...: the `bench` program, beside the daemon that it measures; `pass`, which measures none, is one
# of its own.
cmd_bench() {
    (($#)) || set -- --help
    need_rust
    say 'building the benchmarks'
    if [[ $1 == pass ]]; then
        shift
        run_cargo build --release -p pass
        need_packages valgrind
        exec "${CARGO_TARGET_DIR:-$ROOT/target}/release/pass" "$@"
    fi
    run_cargo build --release -p bench
    case " $* " in
        *' --help '* | *' -h '*) ;;
        *) need_bench "$@" ;;
    esac
    # Its guest needs more of this machine than the tests do that run the rest of it.
    [[ $1 != runstate ]] || set -- "$@" --guest
    SIDECORE_BIN=$SIDECORE SIDECORE_BUILD=$BUILD exec "${CARGO_TARGET_DIR:-$ROOT/target}/release/bench" "$@"
}

# need_bench NAME OPTIONS...: what it measures, and with what.
need_bench() {
    need_sidecore
    need_packages qemu-system-common util-linux valgrind
    case $1 in
        net | peers) need_testpmd ;;
        remote) need_packages iproute2 qemu-utils nbdkit ;;
        tap | runstate)
            need_guests
            need_guest_kernel
            [[ $1 == tap ]] || need_newer_qemu ;;
    esac
    case $* in
        # It measures what there is, and says what is missing.
        peers*)
            get_testpmd_13 || say "without Debian 13's testpmd"
            get_fio || say 'without fio' ;;
        *24.11*) get_testpmd_13 || die "Debian 13's testpmd is missing" "look at $BUILD/apt.log" ;;
        *fio*) get_fio || die 'a fio with libblkio is missing' "FIO=PROGRAM names one; look at $BUILD/apt.log" ;;
    esac
}

sim_usage() {
    cat <<'END'
./x sim [--seeds N] [--from N] [--seed N [--trace] [--log]] [--threads N] [--keep-going]
./x sim schedule OPTIONS

The whole daemon on one thread for each seed, in made-up time: its own control loop and data path, between guests,
VMMs, operators, disks and networks, and what goes wrong with them (docs/decisions/0012-simulator.md). Progress is
on standard error; the last line says how many seeds were run, and what was found. `schedule` is the scheduler
alone, beside other ways to run a core: ./x sim schedule --help.

  --seeds N     how many (1000); those that found something once are run first
  --from N      the first of them (1)
  --seed N      only this one; with --trace all that happens in it, with --log what the daemon says
  --threads N   so many at a time (1); with one it is also counted whether descriptors are left
  --keep-going  also after a finding

examples
  ./x sim --seeds 10000
  ./x sim --seed 4711 --trace
  ./x sim schedule --help
END
}

# cmd_sim schedule OPTIONS...: the scheduler; or OPTIONS alone: the whole daemon. Neither needs anything of this machine.
cmd_sim() {
    (($#)) || set -- --help
    need_rust
    if [[ $1 == schedule ]]; then
        say 'building the simulation'
        run_cargo build --release -p sim
        cargo run --quiet --release -p sim -- "$@"
    else
        case $1 in
            --help | -h) sim_usage; return ;;
            -*) ;;
            *) die "./x sim does not know '$1'" './x sim --help' ;;
        esac
        say 'building the simulator'
        run_cargo build --profile sim -p lives
        cargo run --quiet --profile sim -p lives -- "$@"
    fi
}

cmd_clean() {
    rm -rf "$BUILD" "$ROOT/target"
    say 'removed build/ and target/'
}
