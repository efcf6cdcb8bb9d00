# shellcheck shell=bash
# DPDK's test program with its virtio-user driver: a foreign driver, without a VM. It polls: a core
# each. Sourced by ./x.
#
#   testpmd_start NAME CORE NIC KEY=VALUE.. [-- OPTION..]
#                                   keys are those of net_virtio_user; options of testpmd
#   testpmd_stop NAME               it neither takes nor sends; TESTPMD_RX and TESTPMD_TX are the frames it counted
#   testpmd_end NAME                after that: it goes

# shellcheck disable=SC2034  # read by those who call testpmd_stop
declare -A TESTPMD_PIDS=()
TESTPMD_RX=0 TESTPMD_TX=0

# No hugepages: 256 MiB of shared memory. Only the drivers that it needs, of the hundred there are.
testpmd_start() {
    local name=$1 core=$2 nic=$3 vdev drivers=/usr/lib/x86_64-linux-gnu/dpdk
    shift 3
    vdev="net_virtio_user0,path=$(disk_socket "$nic"),mac=$(nic_mac "$nic"),queue_size=256"
    while (($#)) && [[ $1 != -- ]]; do vdev+=",$1"; shift; done
    (($# == 0)) || shift
    drivers=$(echo "$drivers"/pmds-*)
    mkfifo "$SERVER_DIR/$name.stdin"
    # The first core only waits; frames are moved on the second.
    stdbuf -oL dpdk-testpmd --lcores "0@$core,1@$core" --no-pci --no-huge -m 256 --no-telemetry \
        --file-prefix="sidecore-$$-$name" \
        -d "$drivers/librte_net_virtio.so" -d "$drivers/librte_mempool_ring.so" --vdev "$vdev" \
        -- -i --total-num-mbufs=8192 --auto-start "$@" \
        <>"$SERVER_DIR/$name.stdin" >"$SERVER_DIR/$name.testpmd" 2>&1 3>&- &
    TESTPMD_PIDS[$name]=$!
    own "${TESTPMD_PIDS[$name]}"
    testpmd_says "$name" 'packet forwarding - ports=' || {
        failed "$name-starts" 'dpdk-testpmd does not forward'
        show_tail "$SERVER_DIR/$name.testpmd" "testpmd $name"
        return 1
    }
}

# testpmd_says NAME PATTERN: within some seconds.
testpmd_says() {
    local until_ms=$(($(now_ms) + 90000))
    until grep -qs "$2" "$SERVER_DIR/$1.testpmd"; do
        alive "${TESTPMD_PIDS[$1]}" && (($(now_ms) < until_ms)) || return 1
        sleep 0.1
    done
}

testpmd_stop() {
    local name=$1
    echo stop >"$SERVER_DIR/$name.stdin"
    testpmd_says "$name" '^Done\.' || {
        failed "$name-counts" 'dpdk-testpmd does not say what it counted'
        show_tail "$SERVER_DIR/$name.testpmd" "testpmd $name"
        return 1
    }
    read -r TESTPMD_RX TESTPMD_TX < <(
        awk '/Accumulated/ { now = 1 } now && /RX-total/ { rx = $NF } now && /TX-total/ { tx = $2 }
            END { print rx + 0, tx + 0 }' "$SERVER_DIR/$name.testpmd")
}

testpmd_end() {
    local name=$1 status=0
    echo quit >"$SERVER_DIR/$name.stdin"
    end_within 90 "${TESTPMD_PIDS[$name]}" || status=$?
    disown_pid "${TESTPMD_PIDS[$name]}"
    rm -f "$SERVER_DIR/$name.stdin"
    ((status == 0)) || {
        failed "$name-ends" "dpdk-testpmd ended with status $status"
        show_tail "$SERVER_DIR/$name.testpmd" "testpmd $name"
        return 1
    }
}
