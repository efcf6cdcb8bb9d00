# shellcheck shell=bash
# A search by libFuzzer in a target of fuzz/src/bin.
# Run by x.d/test.sh. libFuzzer on the stable toolchain: the counters of its coverage are a pass of LLVM.

FUZZ_TARGETS=(ring_split ring_packed session config net_header switch estate wire)
FUZZ_HOST=x86_64-unknown-linux-gnu

group_fuzz() {
    need_rust
    need_packages g++
    local seconds=10 target
    [[ -z $TEST_ALL ]] || seconds=300
    build_targets || return 0
    for target in "${FUZZ_TARGETS[@]}"; do
        [[ -z $CASES || " $CASES " == *" $target "* ]] || continue
        fuzz_one "$target" "$seconds"
    done
}

# build_targets: with `--target`, so that build scripts are not counted. A folder of its own, since
# these flags would make everything else be built again.
build_targets() {
    local flag flags=('-Cpasses=sancov-module' '-Clink-dead-code')
    for flag in level=4 inline-8bit-counters pc-table trace-compares; do
        flags+=("-Cllvm-args=-sanitizer-coverage-$flag")
    done
    say 'building the fuzz targets (the first time takes minutes)'
    RUSTFLAGS="${flags[*]}" CARGO_TARGET_DIR=$BUILD/fuzz-target \
        run_command build cargo build --profile sim -p fuzz --features guided --target "$FUZZ_HOST"
}

# fuzz_one TARGET SECONDS: from the seeds and from what earlier runs on this machine have found.
fuzz_one() {
    local target=$1 seconds=$2 log=$TEST_DIR/fuzz-$1.log status=0 corpus=$BUILD/fuzz/$1 found
    mkdir -p "$corpus" "$BUILD/fuzz-findings"
    say "fuzz/$target: $seconds s"
    nice "$BUILD/fuzz-target/$FUZZ_HOST/sim/$target" -max_total_time="$seconds" -timeout=60 \
        -rss_limit_mb=512 -max_len=4096 -print_final_stats=1 -verbosity=1 \
        -artifact_prefix="$BUILD/fuzz-findings/$target-" "$corpus" "$ROOT/fuzz/seeds/$target" \
        >"$log" 2>&1 || status=$?
    found=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    if ((status == 0)) && [[ ${found:-0} -gt 0 ]]; then
        passed "$target" "$found executions, $(covered "$log")"
        say "fuzz/$target: $found executions, $(covered "$log"), no finding"
    else
        failed "$target" "status $status after ${found:-no} executions"
        show_tail "$log" 'the end of what it said' 30
        show_findings "$target"
    fi
}

# covered LOG: the last count of edges and features.
covered() {
    sed -n 's/.*cov: \([0-9]*\) ft: \([0-9]*\).*/\1 edges and \2 features covered/p' "$1" | tail -n 1
}

# show_findings TARGET: the input itself, so that it can be run again wherever this is read.
show_findings() {
    local input
    for input in "$BUILD/fuzz-findings/$1"-*; do
        [[ -f $input ]] || continue
        printf '  the input is kept in %s; as base64:\n' "$input" >&2
        base64 -w 100 "$input" | head -n 50 >&2
    done
}
