# shellcheck shell=bash
# `./x bench recover`: how long guests wait for a daemon that was killed and started again, and for one that
# was replaced; what they lost. The numbers are those of tests/recover.rs and tests/upgrade.rs. Sourced by ./x.

# bench_recover OPTIONS...
bench_recover() {
    local word json='' kills=2000 upgrades=500 rows=$BUILD/recover.rows
    for word; do
        case $word in
            --help | -h)
                printf '%s\n' './x bench recover [--quick] [--json]' '' \
                    'How long guests wait for a daemon that was killed 2,000 times, and replaced 500 times; what they lost.' '' \
                    '  --quick  200 and 60' '  --json   one JSON object a line'
                return ;;
            --json) json=yes ;;
            --quick) kills=200 upgrades=60 ;;
            *) die "./x bench recover does not know $word" './x help' ;;
        esac
    done
    need_rust
    need_packages util-linux
    need_sidecore
    rm -f "$rows"
    mkdir -p "$BUILD"
    recover_run "$kills kills under load" recover kill_at_random_instants "RECOVER_KILLS=$kills"
    recover_run "$upgrades upgrades under load" upgrade disks_under_load "UPGRADES=$upgrades"
    if [[ -n $json ]]; then
        cat "$rows"
    else
        printf '%-34s %10s  %s\n' name value unit
        sed -E 's/.*"name":"([^"]*)".*"value":([^,]*),"unit":"([^"]*)".*/\1 \2 \3/' "$rows" |
            while read -r word kills upgrades; do
                printf '%-34s %10.3f  %s\n' "$word" "$kills" "${upgrades/#1/}"
            done
    fi
}

# recover_run WHAT MODULE TEST VARIABLE=VALUE
recover_run() {
    local log=$BUILD/recover-$2.log
    say "$1"
    if ! env SIDECORE_BIN="$SIDECORE" RECOVER_ROWS="$BUILD/recover.rows" "$4" \
        cargo test --quiet --profile driver -p tests --test recover -- --nocapture "$2::$3" >"$log" 2>&1; then
        show_tail "$log" 'the end of what it said' 30
        die "$1: a guest noticed" "$log says more"
    fi
}
