# shellcheck shell=bash
# The sources with one rule removed, each of which a named test must catch.
# A mutant is tests/mutants/NAME.patch, against the sources as they are now. Its head says
#   # rule: what is removed
#   # test: a command that must fail with it (SIDECORE_BIN is the mutant)
#   # unit: or a command that must fail in a copy of the sources with it; then no daemon is built
#   # says: an extended regular expression that the failing test must print
# Run by x.d/test.sh; `./x test mutants/NAME` tries one.

# Folders that the daemon is built of.
MUTANT_SOURCES=(data control host bin bench testing tests xtask)

group_mutants() {
    need_rust
    need_packages patch
    local tree=$BUILD/mutants/tree patch name
    # Some rules are about time, and what breaks them must be caught.
    export JUDGE_TIMES=yes
    mutant_tree "$tree"
    for patch in "$ROOT"/tests/mutants/*.patch; do
        name=$(basename "$patch" .patch)
        [[ -z $CASES || " $CASES " == *" $name "* ]] || continue
        try_mutant "$name" "$patch" "$tree" || true
    done
}

# mutant_tree FOLDER: a copy of the sources. All are new to cargo: what a run that was cut short
# has left in the target folder must not be taken for theirs.
mutant_tree() {
    rm -rf "$1"
    mkdir -p "$1"
    cp "$ROOT"/Cargo.{toml,lock} "$1"
    local folder
    for folder in "${MUTANT_SOURCES[@]}" guest fuzz sim lab; do
        [[ ! -d $ROOT/$folder ]] || cp -r "$ROOT/$folder" "$1"
    done
}

# run_unit TREE COMMAND: in the mutated sources themselves, as often as with --all, as a mutant's head expects.
run_unit() {
    (cd "$1" && TEST_ALL=yes CARGO_TARGET_DIR=$BUILD/mutants/target bash -c "$2")
}

# build_mutant NAME TREE: the daemon of the mutated sources, as the tests run it. Only what changed is compiled.
build_mutant() {
    (cd "$2" && CARGO_TARGET_DIR=$BUILD/mutants/target CARGO_INCREMENTAL=1 cargo build -p sidecore-bin) &&
        cp "$BUILD/mutants/target/debug/sidecore" "$BUILD/mutants/$1"
}

# try_mutant NAME PATCH TREE
try_mutant() {
    local name=$1 patch=$2 tree=$3 log=$TEST_DIR/mutants-$1.log started built=0 status=0
    local command unit says
    started=$(now_ms)
    command=$(sed -n 's/^# test: //p' "$patch")
    unit=$(sed -n 's/^# unit: //p' "$patch")
    says=$(sed -n 's/^# says: //p' "$patch")
    if [[ -z $command$unit || -z $says ]]; then
        failed "$name" 'its head names no test, or not what that says when it fails'
        return 1
    fi
    if ! patch -d "$tree" -p0 -F0 -N -s -r - <"$patch" >"$log" 2>&1; then
        failed "$name" 'the patch does not apply to the sources as they are: make it anew'
        show_tail "$log" 'what patch said'
        mutant_tree "$tree"
        return 1
    fi
    if [[ -n $unit ]]; then
        say "mutants/$name: $unit"
        run_unit "$tree" "$unit" >"$log" 2>&1 || status=$?
    else
        say "mutants/$name: building the daemon with one rule less"
        build_mutant "$name" "$tree" >"$log" 2>&1 || built=$?
    fi
    patch -d "$tree" -p0 -R -s <"$patch"
    if ((built != 0)); then
        failed "$name" 'the daemon does not build with it'
        show_tail "$log" 'the end of what cargo said' 30
        return 1
    fi
    if [[ -z $unit ]]; then
        say "mutants/$name: $command"
        (export SIDECORE_BIN=$BUILD/mutants/$name && bash -c "$command") >"$log" 2>&1 || status=$?
    fi
    if ((status == 0)); then
        failed "$name" "nothing noticed it: \`${unit:-$command}\` passed"
    elif grep -qE "$says" "$log"; then
        passed "$name" "caught in $(seconds_since "$started") s: $(grep -oE -m 1 "$says" "$log" | head -n 1)"
        # shellcheck disable=SC2154  # the colours are of say.sh
        say "mutants/$name ${green}caught${plain}: $(grep -E -m 1 "$says" "$log")"
    else
        failed "$name" "the test failed, but not with \"$says\""
        show_tail "$log" 'the end of what it said' 30
        return 1
    fi
}
