# Sourced by every guest script: how a script speaks to the host (descriptor 3) and asks for a disk.

# result NAME ok|FAIL DETAIL...
result() { echo "RESULT $*" >&3; echo "RESULT $*"; }

# check NAME COMMAND...: ok where the command succeeds, otherwise FAIL with its last words.
check() {
    check_name=$1; shift
    if check_said=$("$@" 2>&1); then
        result "$check_name" ok
    else
        result "$check_name" FAIL "status $?: $(echo "$check_said" | tail -n 4 | tr '\n' ' ')"
        return 1
    fi
}

# same NAME WANTED GOT
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then result "$1" ok "$3"; else result "$1" FAIL "wanted '$2', got '$3'"; fi
}

# ready NAME: the host may act now.
ready() { echo "READY $1" >&3; }

# wait_for SECONDS COMMAND...: until the command succeeds, for a minute at least.
wait_for() {
    wait_seconds=$1; shift
    [ "$wait_seconds" -ge 60 ] || wait_seconds=60
    wait_until=$(($(cut -d. -f1 /proc/uptime) + wait_seconds))
    until "$@" 2>/dev/null; do
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$wait_until" ] || return 1
        sleep 0.2
    done
}

# attribute DISK NAME: one value of /sys/block/DISK.
attribute() { cat "/sys/block/$1/$2"; }

# file_systems: those that came with the guest for this script.
file_systems() {
    [ ! -f /file-systems/order ] || while read -r file_systems_module; do
        insmod "/file-systems/$file_systems_module" 2>/dev/null
    done </file-systems/order
}
