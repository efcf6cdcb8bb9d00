# shellcheck shell=bash
# The processes that ./x starts: remembered by pid, ended when it ends, nobody else's touched; so too
# the network namespaces that it makes. Sourced by ./x.

OWN_PIDS=()
OWN_NAMESPACES=()

own() { OWN_PIDS+=("$1"); }

disown_pid() {
    local pid kept=()
    for pid in "${OWN_PIDS[@]}"; do
        [[ $pid == "$1" ]] || kept+=("$pid")
    done
    OWN_PIDS=("${kept[@]}")
}

# alive PID: it runs (a process that ended and was not waited for does not count).
alive() {
    local state
    state=$(ps -o state= -p "$1" 2>/dev/null) && [[ -n $state && $state != Z* ]]
}

# end_within SECONDS PID: waits for it and gives its status; kills it (status 124) when time is up.
end_within() {
    if ! gone_within "$1" "$2"; then
        kill -KILL "$2" 2>/dev/null || true
        wait "$2" 2>/dev/null || true
        return 124
    fi
    wait "$2"
}

# gone_within SECONDS PID: whether it ends by itself in that time.
gone_within() {
    local until_ms=$(($(now_ms) + $1 * 1000))
    while alive "$2"; do
        (($(now_ms) <= until_ms)) || return 1
        sleep 0.05
    done
}

# own_namespace NAME: makes it, with `lo` up. Interfaces in it go with it.
own_namespace() {
    ip netns add "$1"
    OWN_NAMESPACES+=("$1")
    ip -n "$1" link set lo up
}

# end_own: every process and namespace that is left. For the EXIT trap of the shell that made them.
end_own() {
    local pid
    for pid in "${OWN_PIDS[@]}"; do
        kill -TERM "$pid" 2>/dev/null || true
    done
    for pid in "${OWN_PIDS[@]}"; do
        end_within 3 "$pid" 2>/dev/null || true
    done
    OWN_PIDS=()
    local namespace
    for namespace in "${OWN_NAMESPACES[@]}"; do
        # Whatever still runs there was started for it.
        ip netns pids "$namespace" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
        ip netns del "$namespace" 2>/dev/null || true
    done
    OWN_NAMESPACES=()
}
