# shellcheck shell=bash
# What a test group found: one line a check in the file OUTCOMES, and the summary over all groups.
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

# run_cases_together COUNT FUNCTION...: as run_cases, so many of them at a time, for cases that wait more than
# they work.
run_cases_together() {
    local most=$1 function pid running=()
    shift
    for function; do
        while ((${#running[@]} >= most)); do
            sleep 0.1
            still_running "${running[@]}"
        done
        run_case_alone "$function" &
        running+=("$!")
        own_shell "$!"
    done
    for pid in "${running[@]}"; do
        wait "$pid" || true
        disown_pid "$pid"
    done
}

# run_case_alone FUNCTION: in a shell of its own; what is owned outside is not the case's to end.
run_case_alone() {
    OWN_PIDS=() OWN_SHELLS=() OWN_NAMESPACES=()
    run_cases "$1"
}

# still_running PID...: keeps those of them that are, in `running`.
still_running() {
    local pid
    running=()
    for pid; do
        if alive "$pid"; then
            running+=("$pid")
        else
            disown_pid "$pid"
        fi
    done
}

# run_cases FUNCTION...: each in a shell of its own, in a folder of its own, its processes ended
# after it. `case_NAME` is the case NAME; CASES (from `./x test guest/NAME`) chooses.
run_cases() {
    local function name all=$OUTCOMES
    for function; do
        name=${function#case_}
        name=${name//_/-}
        [[ -z ${CASES:-} || " $CASES " == *" $name "* ]] || continue
        # Those of a try are kept apart, so that they can be dropped.
        local OUTCOMES=$all.$name
        try_case "$function" "$name"
        if stood_alone "$name"; then
            say "$GROUP/$name: once more, since an emulated machine stood still (docs/decisions/0008-lab.md)"
            printf '%s\n' "$GROUP/$name" >>"$BUILD/test/booted-again"
            try_case "$function" "$name"
        fi
        cat "$OUTCOMES" >>"$all"
        rm -f "$OUTCOMES"
        OUTCOMES=$all
    done
}

# stood_alone NAME: whether the case failed while a machine stood still. Bytes that were found wrong are no matter of
# time: then it is not tried again.
stood_alone() {
    [[ -e $BUILD/test/$1.stood-still ]] && (($(case_failures "$1"))) &&
        ! grep -E '^fail' "$OUTCOMES" | cut -f 2 | grep -qE 'verif|fsck|bytes|lines|whole|unchanged|written|same|works'
}

# try_case FUNCTION NAME
try_case() {
    local name=$2 status started
    : >"$OUTCOMES"
    rm -f "$BUILD/test/$name.stood-still"
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
# What a daemon can do to a guest does not look like that; a case that failed beside it is tried once more.
stood_still() {
    [[ $(accelerator) != kvm ]] || return 1
    compgen -G "$1/*.stands" >/dev/null || grep -qsE "rcu: .* kthread timer wakeup didn't happen" "$1"/*.console
}

# shellcheck disable=SC2031  # called by the case's own shell
# end_case FOLDER: ends what the case started. What it said is kept if it failed, its disks are not.
end_case() {
    local status=$?
    end_own
    if stood_still "$1"; then touch "$BUILD/test/$CASE.stood-still"; fi
    rm -rf "$1/images"
    if ((status != 0 && status != 130)); then
        rm -rf "$BUILD/test/failed/$CASE"
        mkdir -p "$BUILD/test/failed"
        mv "$1" "$BUILD/test/failed/$CASE"
        printf '  its logs: %s\n' "$BUILD/test/failed/$CASE" >&2
    fi
    rm -rf "$1"
    exit "$status"
}

# left_out NAME LOG: what tests say that they have left out (`skipped: WHY`, tests/src/lacking.rs), each reason once, is
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
    local name=$1 log=$BUILD/test/$GROUP-${1//\//-}.log started status=0
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
