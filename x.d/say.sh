# shellcheck shell=bash
# How ./x speaks: progress to stderr with the seconds since the start, errors with what to do.
# Sourced by every part of ./x; starts nothing itself.

if [[ -t 2 && -z ${NO_COLOR:-} ]]; then
    # shellcheck disable=SC2034  # groups of tests use them
    bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' yellow=$'\e[33m' plain=$'\e[0m'
else
    # shellcheck disable=SC2034  # groups of tests use them
    bold='' green='' red='' yellow='' plain=''
fi

X_STARTED=${X_STARTED:-$SECONDS}

# say WORDS...: a line of progress.
say() { printf '%s%4ds%s  %s\n' "$bold" "$((SECONDS - X_STARTED))" "$plain" "$*" >&2; }

# die WHAT WHAT-TO-DO...: the end of a command that cannot go on.
die() {
    printf '%serror:%s %s\n' "$red$bold" "$plain" "$1" >&2
    shift
    (($# == 0)) || printf '  to do: %s\n' "$@" >&2
    exit 1
}

# now_ms: milliseconds of the wall clock.
now_ms() { local t=${EPOCHREALTIME/[.,]/}; printf '%s' "${t%???}"; }

# seconds_since MS: such as 12.3.
seconds_since() {
    local ms=$(($(now_ms) - $1))
    printf '%d.%d' $((ms / 1000)) $((ms % 1000 / 100))
}

# show_tail FILE TITLE [LINES]: the end of a log, so that a failure can be understood where it is told. Bytes that would
# steer a terminal are left out: some logs are consoles of guests.
show_tail() {
    [[ -s $1 ]] || return 0
    printf '  --- %s (%s):\n' "$2" "$1" >&2
    tail -n "${3:-15}" "$1" | LC_ALL=C tr -cd '\t\n\040-\176' | sed 's/^/  | /' >&2
}
