# shellcheck shell=bash
# ./x test: runs groups of x.d/test/, each in a shell of its own, and tells the outcome in a table.
# A group is named on the command line as GROUP or GROUP/CASE. Sourced by ./x.

# group_files: every group, in the order in which they are run.
GROUP_ORDER=(unit sim guest net foreign frontend hostile fuzz recover remote migrate service durable bench lab
    mutants coverage)

groups() {
    local group
    for group in "${GROUP_ORDER[@]}"; do
        [[ ! -f $ROOT/x.d/test/$group.sh ]] || printf '%s\n' "$group"
    done
}

# groups_by_default: without those that say `# ONLY: --all`, unless that was said.
groups_by_default() {
    local group
    for group in $(groups); do
        [[ -z $TEST_ALL ]] && grep -q '^# ONLY: --all' "$ROOT/x.d/test/$group.sh" ||
            printf '%s\n' "$group"
    done
}

list_groups() {
    local group
    for group in $(groups); do
        printf '%-10s %s\n' "$group" "$(sed -n 's/^# GROUP: //p' "$ROOT/x.d/test/$group.sh")"
    done
}

cmd_test() {
    local order=() word group started
    # Cases that are asked for, by group; none means all of them.
    local -A wanted=()
    export TEST_ALL=''
    # A system call that a daemon's lists lack ends it, and so fails a test (docs/decisions/0011).
    export SIDECORE_CONFINE=strict
    # Of an error in a test, what it says and not where: only the end of a log is shown.
    export RUST_LIB_BACKTRACE=0
    for word; do
        case $word in
            --list) list_groups; return ;;
            --all) TEST_ALL=yes ;;
            -*) die "./x test does not know $word" './x help' ;;
            *)
                [[ -f $ROOT/x.d/test/${word%%/*}.sh ]] ||
                    die "there is no test group ${word%%/*}" "./x test --list"
                group=${word%%/*}
                [[ -v wanted[$group] ]] || order+=("$group")
                wanted[$group]+=" ${word#"$group"}" ;;
        esac
    done
    # Times and rates are judged only there: the default depends on no machine's speed (tests/src/timing.rs).
    export JUDGE_TIMES=${JUDGE_TIMES:-$TEST_ALL}
    ((${#order[@]})) || mapfile -t order < <(groups_by_default)
    rm -rf "$BUILD/test"
    mkdir -p "$BUILD/test"
    local rows=()
    for group in "${order[@]}"; do
        started=$(now_ms)
        word=${wanted[$group]:-}
        run_group "$group" "${word//\//}"
        rows+=("$group $(seconds_since "$started")")
    done
    summarize "${rows[@]}"
}

# run_group GROUP CASES: in a shell of its own, so that `set -e` ends a group and not the run.
run_group() {
    local status
    set +e
    (
        set -e
        GROUP=$1
        read -r CASES <<<"$2"
        OUTCOMES=$BUILD/test/$GROUP.outcomes
        touch "$OUTCOMES"
        # shellcheck source=/dev/null
        . "$ROOT/x.d/test/$GROUP.sh"
        "group_$GROUP"
        if [[ ! -s $OUTCOMES ]]; then failed group "no case ran${CASES:+ (is there a case $CASES?)}"; fi
    )
    status=$?
    set -e
    ((status != 130)) || exit 130
    if ((status != 0)) && ! grep -q '^fail' "$BUILD/test/$1.outcomes"; then
        OUTCOMES=$BUILD/test/$1.outcomes failed group "ended with status $status"
    fi
}

# summarize "GROUP SECONDS"...: the table; status 1 if anything failed.
summarize() {
    local row group seconds file failures=0
    printf '\n%-10s %8s %8s %8s %9s\n' group passed failed skipped seconds
    for row; do
        read -r group seconds <<<"$row"
        file=$BUILD/test/$group.outcomes
        printf '%-10s %8d %8d %8d %9s\n' "$group" "$(count_outcomes pass "$file")" \
            "$(count_outcomes fail "$file")" "$(count_outcomes skip "$file")" "$seconds"
        failures=$((failures + $(count_outcomes fail "$file")))
    done
    for row; do
        group=${row%% *}
        awk -F'\t' -v group="$group" '$1 != "pass" { printf "%s  %s/%s: %s\n", $1, group, $2, $3 }' \
            "$BUILD/test/$group.outcomes"
    done
    [[ ! -s $BUILD/test/booted-again ]] ||
        printf 'cases tried once more, since an emulated machine stood still: %d (%s)\n' \
            "$(wc -l <"$BUILD/test/booted-again")" "$(sort -u "$BUILD/test/booted-again" | paste -s -d ' ')"
    printf 'times and rates that did not hold, and were not judged: %d\n' "$(cat "$BUILD"/test/*.log 2>/dev/null | grep -c 'not judged here')"
    if ((failures)); then
        printf '\n%s%d failed%s; logs are in %s\n' "$red$bold" "$failures" "$plain" "$BUILD/test"
        return 1
    fi
    printf '\n%sall passed%s\n' "$green$bold" "$plain"
}
