# shellcheck shell=bash
# Lines of virtqueue, device and vhost_user that tests, the simulator and the corpora of fuzzing reach.
# Run by x.d/test.sh; `./x test coverage` alone does it too. Builds of their own, with counters.

# Whose lines are counted, and whose tests are run for it: those that use them, too.
COVERED_CRATES=(data/virtqueue data/device control/vhost_user)
COVERAGE_TESTS=(virtqueue device vhost_user sidecore manager backend)
COVERAGE_SEEDS=100
# Per cent of lines, for each crate.
COVERAGE_LEAST=95
COVERAGE_HOST=x86_64-unknown-linux-gnu

group_coverage() {
    need_rust
    need_llvm_tools
    COVERAGE=$BUILD/coverage
    rm -rf "$COVERAGE/raw"
    mkdir -p "$COVERAGE/raw"
    say 'building and running with counters (the first time takes minutes)'
    coverage_tests || return 0
    coverage_simulator || return 0
    coverage_fuzz || return 0
    coverage_report
}

# counted COMMAND...: built and run with counters. With `--target`, so that build scripts have none.
counted() {
    RUSTFLAGS=-Cinstrument-coverage CARGO_TARGET_DIR=$COVERAGE/target \
        LLVM_PROFILE_FILE=$COVERAGE/raw/%p-%m.profraw "$@"
}

coverage_tests() {
    local name packages=()
    for name in "${COVERAGE_TESTS[@]}"; do packages+=(-p "$name"); done
    counted run_command tests cargo test --target "$COVERAGE_HOST" "${packages[@]}" --lib --tests
}

coverage_simulator() {
    counted run_command simulator cargo run --target "$COVERAGE_HOST" -p lives -- --seeds "$COVERAGE_SEEDS"
}

# coverage_fuzz: the seeds, mutations of them, and what was found before.
coverage_fuzz() {
    FUZZ_CORPUS=$BUILD/fuzz counted run_command fuzz cargo test --target "$COVERAGE_HOST" -p fuzz --test replay
}

# coverage_objects: the programs that were run, for llvm-cov.
coverage_objects() {
    sed -n 's/^ *Running .*(\(.*\))$/\1/p' "$TEST_DIR"/coverage-{tests,fuzz}.log
    printf '%s\n' "$COVERAGE/target/$COVERAGE_HOST/debug/lives"
}

# coverage_report: a table by file, and a number for each crate.
coverage_report() {
    local objects=() program table=$COVERAGE/table
    while read -r program; do objects+=(--object "$program"); done < <(coverage_objects)
    find "$COVERAGE/raw" -name '*.profraw' >"$COVERAGE/raw.list"
    "$LLVM_TOOLS/llvm-profdata" merge --sparse --input-files="$COVERAGE/raw.list" \
        --output="$COVERAGE/merged"
    "$LLVM_TOOLS/llvm-cov" export --format=lcov --instr-profile="$COVERAGE/merged" "${objects[@]}" \
        --sources "${COVERED_CRATES[@]/#/$ROOT/}" >"$COVERAGE/lcov"
    lines_covered "$COVERAGE/lcov" >"$table"
    cat "$table" >&2
    local crate percent
    for crate in "${COVERED_CRATES[@]}"; do
        percent=$(awk -v crate="$crate" '$1 == crate { print $4 }' "$table")
        if awk -v got="${percent:-0}" -v least="$COVERAGE_LEAST" 'BEGIN { exit got < least }'; then
            passed "$(basename "$crate")" "$percent% of lines"
        else
            failed "$(basename "$crate")" "${percent:-no}% of lines, at least $COVERAGE_LEAST are wanted"
        fi
    done
}

# lines_covered LCOV: file, lines that are shipped, those of them that were run, per cent; for each crate, too.
# Not counted are files of tests, what is below a `#[cfg(test)]` module in a file, and the driver's side of
# rings (the feature `driver`), which no daemon has. The lines that were not run are in missed.
lines_covered() {
    awk -v root="$ROOT/" -v missed="$COVERAGE/missed" '
        function end_of_code(file,    number, line, before) {
            while ((getline line < file) > 0) {
                number++
                if (before ~ /#\[cfg\(test\)\]/ && line ~ /^mod .*\{/) { close(file); return number - 1 }
                before = line
            }
            close(file)
            return number + 1
        }
        /^SF:/ {
            path = substr($0, 4)
            name = substr(path, length(root) + 1)
            is_counted = index(path, root) == 1 && name !~ /\/tests(\/|\.rs$)|\/src\/driver(\/|\.rs$)/
            end = is_counted ? end_of_code(path) : 0
            if (is_counted) { crate = name; sub(/\/src\/.*/, "", crate); names[++files] = name }
        }
        /^DA:/ && is_counted {
            split(substr($0, 4), of, ",")
            if (of[1] + 0 >= end) next
            lines[name]++; lines[crate]++
            if (of[2] + 0 > 0) { run[name]++; run[crate]++ } else print name ":" of[1] >missed
        }
        function row(of) { printf "%-46s %6d %6d %7.2f\n", of, lines[of], run[of], 100 * run[of] / lines[of] }
        END {
            printf "%-46s %6s %6s %7s\n", "file", "lines", "run", "percent"
            for (at = 1; at <= files; at++) if (lines[names[at]]) row(names[at])
            for (at = 1; at <= files; at++) {
                crate = names[at]; sub(/\/src\/.*/, "", crate)
                if (!(crate in told)) { told[crate] = 1; row(crate) }
            }
        }' "$1"
}
