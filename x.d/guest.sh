# shellcheck shell=bash
# Real guests: QEMU with the kernel and initramfs of image.sh, disks over vhost-user from the
# server of server.sh. Sourced by ./x.
#
#   guest_start NAME SCRIPT DISK...   DISK is ID[,property=value...] of vhost-user-blk-pci, with
#                                     as many queues as the server offers for ID;
#                                     GUEST_QEMU (options) and GUEST_WORDS (kernel command line,
#                                     arg.KEY=VALUE reaches the script as $arg_KEY) add to it;
#                                     GUEST_PASTED (shell text) takes the place of memory options;
#                                     GUEST_NICS are NICs, ID[,property=value...] of virtio-net-pci,
#                                     which are eth0, eth1, .. in the guest;
#                                     GUEST_FROM (a guest's name) says that this one goes on where that
#                                     one ends: what both say is in the same files
#   guest_do NAME COMMAND             a shell command in a guest that runs the script `orders`: its
#                                     output and status; DO_SECONDS is how long it may take
#   guest_ready NAME WORD [SECONDS]   until the script says READY WORD
#   guest_end NAME [SECONDS]          until it is off; its results become outcomes
#   qmp NAME JSON                     one QMP command

GUEST_MEMORY_MIB=${GUEST_MEMORY_MIB:-512}
GUEST_PROGRAM=(qemu-system-x86_64)
GUEST_QEMU=()
GUEST_WORDS=()
GUEST_PASTED=
GUEST_NICS=()
GUEST_FROM=
declare -A GUEST_PIDS=()

# KVM only where the hardware's module is loaded: /dev/kvm alone does not say that stock kernels run.
accelerator() {
    if [[ -w /dev/kvm && (-d /sys/module/kvm_intel || -d /sys/module/kvm_amd) ]]; then
        printf 'kvm'
    else
        printf 'tcg,thread=multi'
    fi
}

# boot_words WORDS...: the command line of a guest's kernel.
boot_words() {
    printf '%s' "console=ttyS0 quiet mitigations=off no_timer_check panic=-1" \
        " sysctl.kernel.hung_task_timeout_secs=40 $*"
}

guest_start() {
    local name=$1 script=$2 index=0 disk id devices=() cpu=max,la57=off
    shift 2
    [[ $(accelerator) != kvm ]] || cpu=host
    for disk; do
        id=${disk%%,*}
        devices+=(
            -chardev "socket,id=c$index,path=$(disk_socket "$id"),reconnect=1"
            -device "vhost-user-blk-pci,id=d$index,chardev=c$index,num-queues=${DISK_QUEUES[$id]}${disk#"$id"}")
        index=$((index + 1))
    done
    for id in "${!GUEST_NICS[@]}"; do
        nic_options "n$id" "${GUEST_NICS[id]}"
        devices+=("${NIC_OPTIONS[@]}")
    done
    local memory=(-m "$GUEST_MEMORY_MIB"
        -object "memory-backend-memfd,id=memory,size=${GUEST_MEMORY_MIB}M,share=on"
        -machine memory-backend=memory)
    [[ -z $GUEST_PASTED ]] || eval "memory=($GUEST_PASTED)"
    local boot=(-kernel "$KERNEL" -initrd "$INITRAMFS" -append "$(boot_words "run=$script ${GUEST_WORDS[*]}")")
    rm -f "$SERVER_DIR/$name".{console,results,orders.in,orders.out}
    mkfifo "$SERVER_DIR/$name".orders.{in,out}
    local said
    for said in console results; do
        # To the file itself: a chain of forty links is too long for the kernel.
        [[ -z $GUEST_FROM ]] ||
            ln -s "$(readlink "$SERVER_DIR/$GUEST_FROM.$said" || printf '%s.%s' "$GUEST_FROM" "$said")" \
                "$SERVER_DIR/$name.$said"
    done
    "${GUEST_INSIDE[@]}" "${GUEST_PROGRAM[@]}" -name "$name,debug-threads=on" -accel "$(accelerator)" -cpu "$cpu" -smp "${GUEST_SMP:-2}" \
        -machine q35 "${memory[@]}" -nodefaults -no-user-config -no-reboot \
        -display none "${boot[@]}" \
        -chardev "file,id=console,path=$SERVER_DIR/$name.console,append=on" -serial chardev:console \
        -chardev "file,id=results,path=$SERVER_DIR/$name.results,append=on" -serial chardev:results \
        -serial "pipe:$SERVER_DIR/$name.orders" \
        -qmp "unix:$SERVER_DIR/$name.qmp,server=on,wait=off" \
        "${devices[@]}" "${GUEST_QEMU[@]}" >"$SERVER_DIR/$name.qemu" 2>&1 3>&- &
    GUEST_PIDS[$name]=$!
    own "${GUEST_PIDS[$name]}"
}

# guest_said NAME PATTERN: a line of its results matches.
guest_said() { grep -qE "$2" "$SERVER_DIR/$1.results" 2>/dev/null; }

guest_ready() {
    local seconds=${3:-240} until_ms
    ((seconds >= 240)) || seconds=240
    until_ms=$(($(now_ms) + seconds * 1000))
    until guest_said "$1" "^READY $2\$"; do
        if ! alive "${GUEST_PIDS[$1]}" || (($(now_ms) > until_ms)); then
            guest_examine "$1" "$seconds"
            failed "$1-ready-$2" "guest $1 did not say READY $2"
            show_tail "$SERVER_DIR/$1.console" "guest $1, console"
            show_tail "$SERVER_DIR/$1.qemu" "guest $1, QEMU"
            return 1
        fi
        sleep 0.1
    done
}

guest_do() {
    local name=$1 number=${EPOCHREALTIME//[.,]/} until_ms
    shift
    until_ms=$(($(now_ms) + ${DO_SECONDS:-150} * 1000))
    # A command of several lines goes as one. Opened both ways: without a reader, as when QEMU has ended, it would wait for ever.
    printf '%s %s\n' "$number" "$(tr '\n' '\r' <<<"$*")" 1<>"$SERVER_DIR/$name.orders.in"
    until guest_said "$name" "^STATUS $number "; do
        if ! alive "${GUEST_PIDS[$name]}" || (($(now_ms) > until_ms)); then
            printf 'guest %s gave no answer to: %s\n' "$name" "$*"
            return 125
        fi
        sleep 0.05
    done
    sed -n "s/^OUT $number //p" "$SERVER_DIR/$name.results"
    return "$(sed -n "s/^STATUS $number //p" "$SERVER_DIR/$name.results")"
}

# guest_over NAME [SECONDS]: a guest that takes orders comes to its end.
guest_over() {
    printf '0 end\n' 1<>"$SERVER_DIR/$1.orders.in"
    guest_end "$@"
}

guest_end() {
    local name=$1 pid=${GUEST_PIDS[$1]} status=0 word result detail bad=0 whole='' seconds=${2:-300}
    ((seconds >= 300)) || seconds=300
    if gone_within "$seconds" "$pid"; then
        end_within 0 "$pid" || status=$?
    else
        guest_examine "$name" "$seconds"
        end_within 0 "$pid" || true
        status=124
    fi
    disown_pid "$pid"
    case $status in
        0) ;;
        124) failed "$name-off" "it was still running after $seconds s"; bad=1 ;;
        *) failed "$name-off" "QEMU ended with status $status: $(tail -n 1 "$SERVER_DIR/$name.qemu")"; bad=1 ;;
    esac
    while read -r word result detail; do
        case $word in
            RESULT)
                case $detail in
                    ok*) passed "${GUEST_PREFIX:-}$result" "${detail#ok}" ;;
                    *) failed "${GUEST_PREFIX:-}$result" "${detail#FAIL }"; bad=1 ;;
                esac ;;
            END) whole=yes ;;
        esac
    done <"$SERVER_DIR/$name.results" || true
    [[ -n $whole ]] || { failed "$name-script" "the guest's script did not come to its end"; bad=1; }
    # Of a wait less than two minutes are no complaint (guest_examine looks for shorter ones).
    if grep -E 'I/O error|Kernel panic|Oops|BUG:|blocked for more than (1[2-9]|[2-9][0-9])[0-9]' "$SERVER_DIR/$name.console" \
        >"$SERVER_DIR/$name.complaints"; then
        if [[ -z ${GUEST_MAY_COMPLAIN:-} ]]; then
            failed "$name-kernel" "its kernel said: $(head -n 1 "$SERVER_DIR/$name.complaints" | tr -d '\r')"
            bad=1
        fi
    fi
    ((bad == 0)) || {
        show_tail "$SERVER_DIR/$name.console" "guest $name, console"
        show_tail "$SERVER_DIR/$name.qemu" "guest $name, QEMU"
        show_tail "$SERVER_LOG" "$GUEST_SERVER"
    }
    return "$bad"
}

# guest_examine NAME SECONDS: what a guest that should have ended does: its processors, and what the daemon knows of its disks.
guest_examine() {
    local said=$SERVER_DIR/$1.examined id
    {
        printf '%s\n' '{"execute":"qmp_capabilities"}' '{"execute":"query-status"}' \
            '{"execute":"human-monitor-command","arguments":{"command-line":"info registers -a"}}' |
            timeout 10 socat -t 5 - "UNIX-CONNECT:$SERVER_DIR/$1.qmp" |
            jq -r '.return | if type == "string" then . else .status // empty end' |
            grep -oE '^(CPU#[0-9]+|running|paused|[a-z-]+$)|[RE]IP=[0-9a-f]+|HLT=[01]' | paste -s -d ' ' ||
            echo 'QEMU does not answer'
        [[ $GUEST_SERVER != sidecore ]] || for id in "${!DISK_QUEUES[@]}"; do
            timeout 10 "$SIDECORE" --api "$SERVER_DIR/run/api.sock" show "$id" --json | jq -c \
                '[.id, .state, {queues_attached}, (.counters | {requests, kicks, calls}), .counters.in_flight]' ||
                echo 'the daemon does not answer'
        done
    } >"$said" 2>&1
    show_tail "$said" "guest $1, as it was when its time was over"
    # Its script has not begun (init says BEGIN), so it asked nothing of a disk but what the kernel does as it finds one,
    # and of that the kernel says when it waits for 40 s; it said nothing. The daemon has nothing of it under way.
    if [[ $(accelerator) != kvm && ! -s $SERVER_DIR/$1.console && ! -s $SERVER_DIR/$1.results ]] &&
        (($2 >= 120)) &&
        grep -qE 'CPU#0 RIP=' "$said" && ! grep -qE '(answer|,[1-9][0-9]*\])$' "$said"; then
        touch "$SERVER_DIR/$1.stands"
    fi
}

# qmp GUEST COMMAND: until it has answered; a QEMU whose reader hangs up may drop a command.
qmp() {
    qmp_say "$@" || {
        failed "$1-qmp" "QMP did not do $2: ${QMP_ANSWER:-no answer}"
        return 1
    }
}

# qmp_say NAME COMMAND: whether QEMU did it; its answer in QMP_ANSWER.
qmp_say() {
    local until_ms=$(($(now_ms) + 60000)) said=$SERVER_DIR/$1.qmp-said
    : >"$said"
    # shellcheck disable=SC2094  # what is written there is what is waited for
    {
        printf '%s\n' '{"execute":"qmp_capabilities"}' "$2"
        until (($(grep -cE '^.?"(return|error)"' "$said") >= 2 || $(now_ms) > until_ms)); do
            alive "${GUEST_PIDS[$1]:-$$}" || break
            sleep 0.05
        done
    } | socat - "UNIX-CONNECT:$SERVER_DIR/$1.qmp" >"$said" 2>&1 || true
    QMP_ANSWER=$(grep -E '^.?"(return|error)"' "$said" | sed -n 2p)
    [[ $QMP_ANSWER == *'"return"'* ]]
}

