# shellcheck shell=bash
# The daemon that serves a test's disks and NICs: sidecore, or to compare with qemu-storage-daemon
# (GUEST_SERVER=qemu-storage-daemon) for disks and QEMU with a Linux bridge (GUEST_SERVER=linux) for
# NICs. Sourced by ./x; the guests are guest.sh's, networks net.sh's.
#
#   server_begin FOLDER                     nothing served yet; sockets and logs go to FOLDER
#   server_disk ID KIND SIZE [KEY=VALUE..]  KIND memory|file; keys: queues, readonly, serial, image
#   server_start                            every socket is there when it returns
#   server_kill                             kill -9, and at once another daemon in its place
#   server_served ID SECONDS                until the daemon that runs now has served some of ID
#   server_stop                             fails if the daemon had died or ends badly

GUEST_SERVER=${GUEST_SERVER:-sidecore}
# A daemon that the caller names is not built.
SIDECORE_GIVEN=${SIDECORE:-}
SIDECORE=${SIDECORE:-${CARGO_TARGET_DIR:-$ROOT/target}/release/sidecore}

declare -A DISK_QUEUES=()

server_begin() {
    SERVER_DIR=$1
    SERVER_PID=
    SERVER_LOG=$SERVER_DIR/server.log
    SERVER_CONFIG=$SERVER_DIR/sidecore.toml
    SERVER_SOCKETS=()
    [[ $GUEST_SERVER != sidecore ]] || SERVER_SOCKETS=("$SERVER_DIR/run/api.sock")
    QSD_OPTIONS=()
    DISK_QUEUES=()
    net_begin
    mkdir -p "$SERVER_DIR"/{run,state,images}
    cat >"$SERVER_CONFIG" <<END
[daemon]
api = "$SERVER_DIR/run/api.sock"
run_dir = "$SERVER_DIR/run"
state_dir = "$SERVER_DIR/state"

[sidecores]
cpus = "auto"
END
}

# disk_socket ID, disk_image ID: where a disk is.
disk_socket() { printf '%s/run/%s.sock' "$SERVER_DIR" "$1"; }
disk_image() { printf '%s/images/%s.img' "$SERVER_DIR" "$1"; }

server_disk() {
    local id=$1 kind=$2 size=$3 queues=1 readonly='' serial='' block_size='' image='' option
    shift 3
    for option; do
        local "${option?}"
    done
    image=${image:-$(disk_image "$id")}
    if [[ $kind == file || $GUEST_SERVER != sidecore ]]; then
        [[ -e $image ]] || truncate -s "$size" "$image"
    fi
    SERVER_SOCKETS+=("$(disk_socket "$id")")
    DISK_QUEUES[$id]=$queues
    if [[ $GUEST_SERVER != sidecore ]]; then
        local writable=on
        [[ -z $readonly ]] || writable=off
        QSD_OPTIONS+=(
            --blockdev "driver=file,node-name=$id,filename=$image,discard=unmap,locking=off$(
                [[ -z $readonly ]] || echo ,read-only=on)"
            --export "type=vhost-user-blk,id=x-$id,node-name=$id,writable=$writable,num-queues=$queues,addr.type=unix,addr.path=$(disk_socket "$id")")
        return
    fi
    {
        printf '\n[[disk]]\nid = "%s"\nbackend = "%s"\nqueues = %d\n' "$id" "$kind" "$queues"
        case $kind in
            file) printf 'path = "%s"\n' "$image" ;;
            *) printf 'size = "%s"\n' "$size" ;;
        esac
        [[ -z $readonly ]] || printf 'readonly = true\n'
        [[ -z $serial ]] || printf 'serial = "%s"\n' "$serial"
        [[ -z $block_size ]] || printf 'block_size = %d\n' "$block_size"
    } >>"$SERVER_CONFIG"
}

server_start() {
    case $GUEST_SERVER in
        sidecore)
            [[ -x $SIDECORE ]] || die "there is no $SIDECORE" './x build'
            "${NET_INSIDE[@]}" "$SIDECORE" serve --config "$SERVER_CONFIG" >>"$SERVER_LOG" 2>&1 3>&- &
            ;;
        qemu-storage-daemon)
            qemu-storage-daemon "${QSD_OPTIONS[@]}" >"$SERVER_LOG" 2>&1 3>&- &
            ;;
        # The kernel's bridge is there already, and QEMU itself has the taps.
        linux) return ;;
        *) die "GUEST_SERVER=$GUEST_SERVER is not known" \
            'GUEST_SERVER=sidecore, qemu-storage-daemon (disks) or linux (NICs)' ;;
    esac
    SERVER_PID=$!
    own "$SERVER_PID"
    local socket tries=0
    for socket in "${SERVER_SOCKETS[@]}"; do
        tries=0
        until [[ -S $socket ]]; do
            if ((tries++ > 900)) || ! alive "$SERVER_PID"; then
                show_tail "$SERVER_LOG" "what $GUEST_SERVER said"
                die "$GUEST_SERVER did not make $socket" "read $SERVER_LOG"
            fi
            sleep 0.1
        done
    done
}

server_kill() {
    kill -KILL "$SERVER_PID"
    wait "$SERVER_PID" 2>/dev/null || true
    disown_pid "$SERVER_PID"
    server_start
}

server_served() {
    local until_ms=$(($(now_ms) + ($2 < 60 ? 60 : $2) * 1000)) served
    while (($(now_ms) < until_ms)); do
        served=$(disk_counter "$1" requests 2>/dev/null) || served=0
        ((served == 0)) || return 0
        sleep 0.02
    done
    return 1
}

server_stop() {
    local pid=$SERVER_PID status=0
    [[ -n $pid ]] || return 0
    SERVER_PID=
    if ! alive "$pid"; then
        wait "$pid" || status=$?
        failed server-lives "$GUEST_SERVER had ended by itself with status $status"
        show_tail "$SERVER_LOG" "what $GUEST_SERVER said"
        return 1
    fi
    kill -TERM "$pid" 2>/dev/null || true
    end_within 90 "$pid" || status=$?
    disown_pid "$pid"
    if ((status != 0)); then
        failed server-stops "$GUEST_SERVER ended with status $status after SIGTERM"
        show_tail "$SERVER_LOG" "what $GUEST_SERVER said"
        return 1
    fi
}

# sidecore_do ARGUMENTS...: a command to the running daemon.
sidecore_do() { "$SIDECORE" --api "$SERVER_DIR/run/api.sock" "$@"; }

# disk_counter ID NAME: one total of a disk, such as discards.
disk_counter() { sidecore_do show "$1" --json | jq -r ".counters.$2"; }
