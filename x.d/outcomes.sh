# shellcheck shell=bash
# What a test group found: one line a check in the file OUTCOMES.
# Sourced by ./x.
#
# A line is: pass|fail|skip TAB NAME TAB DETAIL. CASE, if set, goes before the name.

outcome() {
    printf '%s\t%s\t%s\n' "$1" "$(outcome_name "$2")" "$3" >>"$OUTCOMES"
}

# outcome_name NAME: with the case before it; a whole case has no NAME.
outcome_name() {
    if [[ -n ${CASE:-} ]]; then printf '%s' "$CASE${1:+/$1}"; else printf '%s' "$1"; fi
}

passed() { outcome pass "$1" "${2:-}"; }

failed() {
    outcome fail "$1" "${2:-}"
    printf '  %sFAIL%s %s  %s\n' "$red$bold" "$plain" "$(outcome_name "$1")" "${2:-}" >&2
}

skipped() {
    outcome skip "$1" "${2:-}"
    printf '  %sskip%s %s: %s\n' "$yellow" "$plain" "$(outcome_name "$1")" "${2:-}" >&2
}

# count_outcomes KIND FILE
count_outcomes() { grep -c "^$1"$'\t' "$2" 2>/dev/null || true; }

# case_failures NAME: how many of that case.
case_failures() {
    local pattern=$'^fail\t'"$1"$'(/|\t)'
    grep -cE "$pattern" "$OUTCOMES" 2>/dev/null || true
}

# run_cases FUNCTION...: each in a shell of its own, in a folder of its own, its processes ended
# after it. `case_NAME` is the case NAME; CASES (from `./x test guest/NAME`) chooses.
run_cases() {
    local function name
    for function; do
        name=${function#case_}
        name=${name//_/-}
        [[ -z ${CASES:-} || " $CASES " == *" $name "* ]] || continue
        try_case "$function" "$name"
    done
}

# try_case FUNCTION NAME
try_case() {
    local name=$2 status started
    started=$(now_ms)
    set +e
    (
        set -e
        # shellcheck disable=SC2030,SC2031  # the case's own shell, on purpose
        CASE=$name
        case_folder=$(mktemp -d "${TMPDIR:-/tmp}/sidecore.XXXXXX")
        trap 'end_case "$case_folder"' EXIT
        trap 'exit 130' INT TERM
        server_begin "$case_folder"
        "$1"
        server_stop
    )
    status=$?
    set -e
    ((status != 130)) || exit 130
    if ((status != 0 && $(case_failures "$name") == 0)); then
        CASE=$name failed ends "status $status"
    fi
    if (($(case_failures "$name") == 0)); then
        say "$GROUP/$name ${green}ok${plain} ($(seconds_since "$started") s)"
    else
        say "$GROUP/$name ${red}FAILED${plain} ($(seconds_since "$started") s)"
    fi
}

# stood_still FOLDER: an emulated guest's kernel says that a processor of it had no timer interrupts for
# 21 s, which QEMU 7.2 does now and then to a machine that it emulates; or it stood before it had timers (guest_examine).
# What a daemon can do to a guest does not look like that; `suite` tries a case that failed beside it once more.
stood_still() {
    [[ $(accelerator) != kvm ]] || return 1
    compgen -G "$1/*.stands" >/dev/null || grep -qsE "rcu: .* kthread timer wakeup didn't happen" "$1"/*.console
}

# shellcheck disable=SC2031  # called by the case's own shell
# end_case FOLDER: ends what the case started. What it said is kept if it failed, its disks are not.
end_case() {
    local status=$?
    end_own
    if stood_still "$1"; then touch "$TEST_DIR/stood-still"; fi
    rm -rf "$1/images"
    if ((status != 0 && status != 130)); then
        rm -rf "$TEST_DIR/failed/$CASE"
        mkdir -p "$TEST_DIR/failed"
        mv "$1" "$TEST_DIR/failed/$CASE"
    fi
    rm -rf "$1"
    exit "$status"
}

# left_out NAME LOG: what tests say that they have left out (`skipped: WHY`, testing/src/lacking.rs), each reason once, is
# skipped. True if that is all there was to do: as many as the largest number of tests that passed in one go.
left_out() {
    local line number most count=0
    # One test at a time, its name is on the line before what it says has an end.
    while read -r number line; do
        count=$((count + number))
        ((number == 1)) || line+=" ($number tests)"
        skipped "$1" "$line"
    done < <(sed -nE 's/^(test [^ ]+ \.\.\. )?skipped: //p' "$2" | LC_ALL=C sort | uniq -c)
    most=$(sed -nE 's/.*test result: ok\. ([0-9]+) passed.*/\1/p' "$2" | sort -n | tail -n 1)
    ((count > 0 && count >= ${most:-0}))
}

# run_command NAME COMMAND...: one check that is a command; its output is kept, its end shown on
# failure. What its tests have left out is skipped.
run_command() {
    local name=$1 log=$TEST_DIR/$GROUP-${1//\//-}.log started status=0
    shift
    say "$GROUP/$name: $*"
    started=$(now_ms)
    "$@" >"$log" 2>&1 || status=$?
    if ((status == 0)); then
        left_out "$name" "$log" || passed "$name" "$(seconds_since "$started") s"
    else
        failed "$name" "\`$*\` gave status $status"
        show_tail "$log" 'the end of what it said' 40
        return 1
    fi
}
