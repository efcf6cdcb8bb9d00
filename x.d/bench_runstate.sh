# shellcheck shell=bash
# ./x bench runstate: a guest of four vCPUs that share their cores with others, and what it takes to reach it,
# with redirection and without (docs/decisions/0016-runstate.md). Sourced by ./x.
#
# All four are on one processor, each kept busy by the guest, with BURNERS busy threads of the host; the sidecore has
# another one, since on its own it would never see a vCPU run: it has taken the processor from it to look.
# Rounds take turns: `redirect` is changed by a reload.
# Three things are as they would be on KVM with a server for many (0016 says what each hides): QEMU's mutexes spin before
# they sleep (runstate/spin.c, preloaded, where KVM is not), the server has a worker for each vCPU (runstate/reuseport.c,
# preloaded to sockperf in the guest), and pings go at moments of no pattern. `--contended` is this part alone.
# vCPUs and busy threads are in a group of their own, whose weight keeps what else the machine does out of the figures as far
# as that goes; who asks, the sidecore, and QEMU's own thread, by which calls go without KVM, have real-time priority.
#
# Before that: whether run state is what the kernel accounts for, and what a switch and a look cost
# (bench/src/runstate.rs). The program takes switch.followed_ns less switch.measuring_ns.
#
# Rows: runstate.agreement.{switches,time,time_worst_ns,samples,slices,slices_seen}, runstate.switch.{followed,others,measuring}_ns, runstate.look_ns,
# runstate.sleeping.{poll,adaptive}.{passes,awake.p50_us,awake.p99_us,woken.p50_us,woken.p99_us,woken.kicks} (64 guests of
# which 60 sleep), runstate.contended.{ping,rr}.{p50_us,p99_us,max_us}, runstate.contended.tcp.{mbps,retransmits}; `who`
# is sidecore or sidecore-without.
#
# An emulated guest has an interrupt for each queue only with a QEMU newer than Debian 12's: 10.0.2 of
# bookworm-backports is unpacked for it, as the guest's kernel is, and not installed.

BURNERS=${BURNERS:-0}
RUNSTATE_GROUP=/sys/fs/cgroup/cpu/sidecore-runstate

bench_runstate() {
    local rounds=5 seconds=5 json='' quick='' contended='' word folder
    for word; do
        case $word in
            --quick) rounds=2 seconds=3 quick=yes ;;
            --json) json=yes ;;
            --contended) contended=yes ;;
            *) die "./x bench runstate does not know $word" './x bench runstate [--quick] [--contended] [--json]' ;;
        esac
    done
    ((EUID == 0)) || die './x bench runstate loads a program into the kernel, which needs root' 'sudo ./x bench runstate'
    (($(nproc) >= 2)) || die './x bench runstate needs two processors'
    need_guests
    need_guest_image
    need_sidecore
    need_newer_qemu
    need_preloads
    # --contended: the guest alone.
    [[ -n $contended ]] ||
        SIDECORE_BIN=$SIDECORE cargo run --quiet --release -p bench -- runstate ${quick:+--quick} ${json:+--json} ||
        die 'run state cannot be measured' 'read what is said above'
    folder=$(mktemp -d "${TMPDIR:-/tmp}/sidecore.XXXXXX")
    # shellcheck disable=SC2064  # the folder as it is now
    trap "end_own; rmdir $RUNSTATE_GROUP 2>/dev/null; rm -rf '$folder'" EXIT
    OUTCOMES=$folder/outcomes
    : >"$OUTCOMES"
    : >"$folder/rows"
    runstate_world "$folder"
    local round who turns=(sidecore-without sidecore)
    for ((round = 1; round <= rounds; round++)); do
        for who in "${turns[@]}"; do
            runstate_turn "$who"
            # Until the daemon knows how long an answer takes; in both turns, so that they are the same.
            place_do host 'ping -q -i 0.02 -c 50 -W 2 10.9.0.1 >/dev/null' || die 'the guest does not answer' "read $SERVER_LOG"
            runstate_ping "$who"
            runstate_rr "$who"
            runstate_tcp "$who"
        done
        # Who is first changes.
        turns=("${turns[1]}" "${turns[0]}")
        say "round $round of $rounds"
    done
    say "$(sidecore_do nic show steered | grep '^redirect')"
    # Two turns without are no comparison.
    local redirected
    redirected=$(sidecore_do nic show steered --json | jq '.run_state.redirected // 0')
    ((redirected > 0)) || die 'nothing was redirected: these figures compare nothing' 'read the line above'
    server_stop
    runstate_tell "$json" <"$folder/rows"
}

# need_newer_qemu: in GUEST_PROGRAM, one that takes MSI-X vectors of vhost-user NICs without KVM.
need_newer_qemu() {
    [[ $(accelerator) != kvm ]] || return 0
    local place=$BUILD/qemu-newer package
    if [[ ! -x $place/root/usr/bin/qemu-system-x86_64 ]]; then
        say 'downloading a newer QEMU (not installed, only unpacked)'
        rm -rf "$place"
        mkdir -p "$place"/{lists/partial,cache/archives/partial}
        local mirror
        # shellcheck disable=SC2016  # apt's own words
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/$') ||
            die 'apt has no source of Debian' 'look into /etc/apt/sources.list'
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main" >"$place/sources.list"
        local apt=(apt-get -o "Dir::Etc::sourcelist=$place/sources.list" -o Dir::Etc::sourceparts=/nonexistent
            -o "Dir::State::lists=$place/lists" -o "Dir::Cache=$place/cache")
        (cd "$place" && "${apt[@]}" update &&
            "${apt[@]}" download qemu-system-x86 qemu-system-data seabios) >"$BUILD/apt.log" 2>&1 || {
            show_tail "$BUILD/apt.log" 'the end of what apt said'
            die 'apt could not download a newer QEMU' 'run this again where bookworm-backports can be reached'
        }
        for package in "$place"/*.deb; do dpkg-deb -x "$package" "$place/root"; done
    fi
    # What Debian links to seabios is by whole names.
    GUEST_PROGRAM=("$place/root/usr/bin/qemu-system-x86_64" -L "$place/root/usr/share/qemu" -L "$place/root/usr/share/seabios")
}

# need_preloads: what QEMU and the servers in the guest are started with; INITRAMFS has the latter's.
need_preloads() {
    local name place=$BUILD/runstate
    need_packages gcc libc6-dev
    mkdir -p "$place/tree/lib"
    for name in spin reuseport; do
        cc -O2 -Wall -Werror -shared -fPIC -o "$place/$name.so" "$ROOT/x.d/runstate/$name.c" -ldl ||
            die "x.d/runstate/$name.c cannot be compiled" 'read what the compiler says above'
    done
    cp "$place/reuseport.so" "$place/tree/lib/"
    image_with "$place/tree" "$place/initramfs.cpio"
    INITRAMFS=$place/initramfs.cpio
}

runstate_world() {
    local tid name burner
    server_begin "$1"
    sed -i 's/^cpus = .*/cpus = "1"/' "$SERVER_CONFIG"
    net_inside
    place_namespace host "$NET_HOST"
    # Said at the start, or the daemon does not load its program.
    server_nic steered tap=steered queues=4 redirect=always
    server_start
    # The sidecore is there at once; what is measured is the guest.
    for tid in /proc/"$SERVER_PID"/task/*; do
        [[ $(<"$tid/comm") != sidecore-* ]] || chrt -f -p 10 "${tid##*/}"
    done
    ip -n "$NET_HOST" link set steered up
    ip -n "$NET_HOST" addr add 10.9.0.100/24 dev steered
    GUEST_NICS=('steered,vectors=10')
    local preload=()
    [[ $(accelerator) == kvm ]] || preload=(env "LD_PRELOAD=$BUILD/runstate/spin.so")
    GUEST_PROGRAM=("${preload[@]}" "${GUEST_PROGRAM[@]}")
    GUEST_SMP=4 guest_start steered orders
    guest_ready steered orders
    [[ -z ${preload[*]} ]] || grep -q spin.so "/proc/${GUEST_PIDS[steered]}/maps" ||
        die 'QEMU has not loaded spin.so' "read $SERVER_DIR/steered.qemu"
    guest_do steered 'ip link set eth0 up; ethtool -L eth0 combined 4; ip addr add 10.9.0.1/24 dev eth0; ping -q -c 1 -W 5 10.9.0.100' ||
        die 'the guest reaches nobody' 'read what FAIL says above'
    # shellcheck disable=SC2016  # for the guest's shell
    # A worker on each vCPU, which has what its vCPU receives, as servers for many are made; the n-th is the n-th's.
    guest_do steered 'for n in 0 1 2 3; do
            LD_PRELOAD=/lib/reuseport.so taskset -c $n sockperf server -i 10.9.0.1 >>/tmp/sockperf 2>&1 &
            until [ "$(grep -c :2B67 /proc/net/udp)" -gt $n ]; do sleep 0.1; done
        done
        iperf3 -s -D >/dev/null 2>&1
        for n in 0 1 2 3; do taskset -c $n sh -c "while :; do :; done" & renice -n 19 -p $! >/dev/null; done'
    mkdir -p "$RUNSTATE_GROUP"
    echo 200000 >"$RUNSTATE_GROUP/cpu.shares"
    for tid in /proc/"${GUEST_PIDS[steered]}"/task/*; do
        name=$(<"$tid/comm")
        # Without KVM a call goes through a thread of QEMU's, which is not what is measured.
        [[ $name == CPU\ * ]] || { chrt -f -p 9 "${tid##*/}"; taskset -p -c 1 "${tid##*/}" >/dev/null; continue; }
        taskset -p -c 0 "${tid##*/}" >/dev/null
        echo "${tid##*/}" >"$RUNSTATE_GROUP/tasks"
    done
    for ((burner = 0; burner < BURNERS; burner++)); do
        taskset -c 0 sh -c 'while :; do :; done' &
        own $!
        echo $! >"$RUNSTATE_GROUP/tasks"
    done
}

# runstate_turn WHO: with redirection or without, from here on.
runstate_turn() {
    local rule=off
    [[ $1 != sidecore ]] || rule=always
    sed -i "s/^redirect = .*/redirect = \"$rule\"/" "$SERVER_CONFIG"
    "$SIDECORE" --api "$SERVER_DIR/run/api.sock" reload >/dev/null ||
        die 'the daemon refused a reload' "read $SERVER_LOG"
    sleep 0.5
}

# runstate_row WHO WHAT: microseconds, one a line, become three rows.
runstate_row() {
    sort -n | awk -v who="$1" -v what="$2" -v count_min=20 '
        { values[NR] = $1 }
        function at(part) { n = int(part * NR + 0.999999); return values[n < 1 ? 1 : n] }
        END {
            if (NR < count_min) { print "too few answers: " NR > "/dev/stderr"; exit 1 }
            print what ".p50_us", who, at(0.5)
            print what ".p99_us", who, at(0.99)
            print what ".max_us", who, values[NR]
        }' >>"$folder/rows" || die "$2 of $1 failed: $(guest_do steered 'cat /tmp/sockperf | tail -3')" 'read what is said above'
}

# One at a time, at moments of no pattern: those of `ping -i` fall in with the slices of the vCPUs.
runstate_ping() {
    local moments
    moments=$(awk -v seed="$RANDOM" -v count="$((seconds * 60))" 'BEGIN {
        srand(seed); while (count-- > 0) printf "0.0%02d ", 10 + rand() * 20 }')
    # shellcheck disable=SC2154  # of bench_runstate
    # All of it on the sidecore's processor: a program that starts on the other one disturbs a slice there.
    # Of one that is lost it is known that it took two seconds or more.
    place_do host "taskset -p -c 1 \$\$ >/dev/null; chrt -f -p 8 \$\$; for moment in $moments; do
            ping -c 1 -W 2 10.9.0.1 || echo 'time=2000 ms'; sleep \$moment; done" |
        sed -n 's/.*time=\([0-9.]*\) ms/\1/p' | awk '{ print $1 * 1000 }' | runstate_row "$1" ping
}

runstate_rr() {
    place_do host "rm -f rr.csv; taskset -c 1 chrt -f 8 sockperf ping-pong -i 10.9.0.1 -t $seconds --full-rtt --full-log rr.csv >rr.said 2>&1 || cat rr.said >&2;
        cat rr.csv" | awk -F ', ' 'NF == 4 && $1 ~ /^[0-9]+$/ { print $4 }' | runstate_row "$1" rr
}

runstate_tcp() {
    local said
    said=$(place_do host "iperf3 -J -i 0 -t $seconds -c 10.9.0.1") || true
    jq -r --arg who "$1" '"tcp.mbps \($who) \(.end.sum_received.bits_per_second / 1e6 | floor)",
        "tcp.retransmits \($who) \(.end.sum_sent.retransmits)"' <<<"$said" >>"$folder/rows" ||
        die "iperf3 failed: $(short "$said")"
}

# runstate_tell JSON: medians of the rounds with the least and greatest.
runstate_tell() {
    sort -k1,1 -k2,2 -k3,3n | awk -v json="$1" '
        { rows[$1 " " $2] = rows[$1 " " $2] " " $3; names[$1] = 1 }
        function row(name, who,    values, count, middle, unit) {
            count = split(rows[name " " who], values, " ")
            middle = (values[int((count + 1) / 2)] + values[int(count / 2) + 1]) / 2
            unit = name ~ /_us$/ ? "us" : name ~ /mbps$/ ? "Mbit/s" : "count"
            if (json)
                printf "{\"name\":\"runstate.contended.%s\",\"who\":\"%s\",\"value\":%s,\"unit\":\"%s\",\"spread\":[%s,%s]}\n", name, who, middle, unit, values[1], values[count]
            else
                printf "%-34s %-17s %10.0f %-6s %10.0f %10.0f\n", "runstate.contended." name, who, middle, unit, values[1], values[count]
        }
        END {
            if (!json) printf "%-34s %-17s %10s %-6s %10s %10s\n", "name", "who", "value", "unit", "min", "max"
            count = split("ping.p50_us ping.p99_us ping.max_us rr.p50_us rr.p99_us rr.max_us tcp.mbps tcp.retransmits", order, " ")
            for (i = 1; i <= count; i++) { row(order[i], "sidecore"); row(order[i], "sidecore-without") }
        }'
}
