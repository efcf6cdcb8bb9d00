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

# run_command NAME COMMAND...: one check that is a command; its output is kept, its end shown on failure.
run_command() {
    local name=$1 log=$TEST_DIR/$GROUP-${1//\//-}.log started status=0
    shift
    say "$GROUP/$name: $*"
    started=$(now_ms)
    "$@" >"$log" 2>&1 || status=$?
    if ((status == 0)); then
        passed "$name" "$(seconds_since "$started") s"
    else
        failed "$name" "\`$*\` gave status $status"
        show_tail "$log" 'the end of what it said' 40
        return 1
    fi
}
