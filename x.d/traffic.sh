# shellcheck shell=bash
# Traffic between places, and what is asked of it: one outcome each. A place is a guest that takes
# orders (script `orders`), or a namespace of net.sh: `host`, `outside`. Sourced by ./x.
#
#   place_do PLACE COMMAND                 a shell command there: its output and status
#   ask NAME PLACE COMMAND                 the command succeeds
#                                          (await_for SECONDS COMMAND: one that waits for another)
#   tcp|udp NAME PLACE IPERF-ARGUMENTS...  a second to an iperf3 server
#   stream_start FROM TO ADDRESS PORT      a connection with ten numbered lines a second, until it is ended
#   stream_at TO PORT                      the last number that came
#   stream_end NAME FROM TO PORT           every number came once and in order, by that one connection
#   load_start PLACE ADDRESS SECONDS       iperf3 both ways at once; load_end NAME PLACE: not broken, and not silent at its end

declare -A PLACES=()

# place_namespace PLACE NAMESPACE: what runs there finds its files in a folder of its own.
place_namespace() {
    PLACES[$1]=$2
    mkdir -p "$SERVER_DIR/place-$1"
}

place_do() {
    if [[ -z ${PLACES[$1]:-} ]]; then
        guest_do "$1" "cd /tmp; ${*:2}"
    else
        (cd "$SERVER_DIR/place-$1" && in_namespace "${PLACES[$1]}" sh -c "${*:2}" 2>&1 3>&-)
    fi
}

# await_for SECONDS COMMAND: shell words that wait for it, for a minute at least; status 1 when time is up.
await_for() {
    # shellcheck disable=SC2016  # the place's variable
    printf 'n=0; until %s; do n=$((n + 1)); [ $n -lt %d ] || exit 1; sleep 0.1; done' "$2" $((($1 < 60 ? 60 : $1) * 10))
}

# listens PORT: shell words that wait until somebody listens there.
listens() { await_for 60 "grep -qE ':$(printf %04X "$1") 0+:0000 0A' /proc/net/tcp /proc/net/tcp6"; }

# short WORDS: the end of what a command said, in one line.
short() { tail -n 3 <<<"$1" | tr '\n' ' '; }

ask() {
    local name=$1 said status=0
    shift
    said=$(place_do "$@") || status=$?
    if ((status == 0)); then
        passed "$name"
    else
        failed "$name" "\`${*:2}\` in $1 gave status $status: $(short "$said")"
    fi
}

tcp() {
    local name=$1 place=$2 said rate
    shift 2
    said=$(place_do "$place" "iperf3 -J -i 0 -t 1 -c $*") || true
    rate=$(jq -r '.end.sum_received | select(.bytes > 0) | .bits_per_second / 1e6 * 10 | round / 10' <<<"$said" 2>/dev/null) || rate=
    # How fast is the machine's; that bytes arrive is the network's.
    if [[ -n $rate ]]; then
        passed "$name" "$rate Mbit/s"
    else
        failed "$name" "iperf3 -c $* in $place: $(jq -r .error <<<"$said" 2>/dev/null || short "$said")"
    fi
}

# A rate that an emulated guest can take, also when it has to wait for its core. How much of it arrives is the
# machine's speed: nine of ten are asked for with --all, otherwise that any do.
udp() {
    local name=$1 place=$2 said
    shift 2
    said=$(place_do "$place" "iperf3 -J -i 0 -t 1 -u -b 5M -c $*") || true
    said=$(jq -r '.end.sum | "\(.packets) \(.lost_percent * 10 | round / 10)"' <<<"$said" 2>/dev/null) || said=
    if awk -v most="${TEST_ALL:+10}" '{ exit !($1 > 0 && $2 < (most ? most : 100)) }' <<<"$said"; then
        passed "$name" "${said% *} datagrams, ${said#* } % lost"
    else
        failed "$name" "iperf3 -u -c $* in $place: datagrams and percent lost are: $said"
    fi
}

stream_start() {
    place_do "$2" "rm -f stream-$4; tail -f /dev/null | busybox nc -l -p $4 >stream-$4 2>/dev/null & $(listens "$4")" >&2
    place_do "$1" "rm -f stop-$4 ended-$4
        { n=0; while [ ! -e stop-$4 ]; do n=\$((n + 1)); echo \$n; sleep 0.1; done |
            busybox nc $3 $4 >/dev/null 2>&1; echo over >ended-$4; } >/dev/null 2>&1 &" >&2
}

stream_at() { place_do "$1" "tail -n 1 stream-$2"; }

stream_end() {
    local name=$1 last found
    place_do "$2" "touch stop-$4; n=0
        until [ -e ended-$4 ]; do n=\$((n + 1)); [ \$n -lt 600 ] || exit 1; sleep 0.1; done" >&2 || true
    last=$(stream_at "$3" "$4") || true
    if [[ $last =~ ^[0-9]+$ ]] && place_do "$3" "seq 1 $last | cmp -s - stream-$4"; then
        passed "$name" "$last lines"
    else
        # The first that is not as it should be, and the end, with what cannot be seen of it.
        found=$(place_do "$3" "ls -l stream-$4; seq 1 100000 | cmp stream-$4 -; tail -c 40 stream-$4 | od -c" 2>&1) || true
        failed "$name" "of the lines from $2 to $3 the last is '$(short "$last")', or some are missing: $(tr '\n' ' ' <<<"$found")"
    fi
}

load_start() {
    place_do "$1" "iperf3 -f k -i 1 --forceflush --bidir -b ${LOAD_RATE:-40M} -t $3 -c $2 >load 2>&1 &
        echo \$! >load-pid" >&2
}

# load_said PLACE: what it said last. load_rates: of that, the last but one second of each way: the last one may
# not be over.
load_said() {
    place_do "$1" 'grep -E "error|[RT]X-C.*bits/sec" load | tail -n 6' || true
}

load_rates() {
    awk '/X-C/ { way = /TX-C/; for (i = 2; i <= NF; i++)
            if ($i == "Kbits/sec") { before[way] = last[way]; last[way] = $(i - 1) } }
        END { print before[1] + 0, before[0] + 0 }'
}

# load_flows PLACE: both ways.
load_flows() { both_flow "$(load_said "$1" | load_rates)"; }

# both_flow "RATE RATE": neither is nothing.
both_flow() { awk '{ exit !($1 > 0 && $2 > 0) }' <<<"$1"; }

# The connections are those of the beginning: iperf3 does not connect again. They have some seconds to flow again
# after what came last.
load_end() {
    local said rates until_ms=$(($(now_ms) + 90000))
    said=$(load_said "$2")
    until [[ $said == *error* ]] || both_flow "$(load_rates <<<"$said")" || (($(now_ms) > until_ms)); do
        sleep 0.5
        said=$(load_said "$2")
    done
    # shellcheck disable=SC2016  # the place's expressions
    place_do "$2" 'kill -INT "$(cat load-pid)"' >&2 || true
    rates=$(load_rates <<<"$said")
    if [[ $said != *error* ]] && both_flow "$rates"; then
        passed "$1" "$rates kbit/s in a last second"
    else
        failed "$1" "out and back $rates kbit/s in a last second: $(short "$said")"
    fi
}
