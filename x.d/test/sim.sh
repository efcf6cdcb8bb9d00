# shellcheck shell=bash
# GROUP: the whole system simulated: the seeds that once found something, then 1,000 (100,000 with --all)
# Run by x.d/test.sh.

group_sim() {
    need_rust
    cargo_quietly build --profile sim -p world
    local seeds=1000
    [[ -z $TEST_ALL ]] || seeds=100000
    run_command seeds cargo run --quiet --profile sim -p world -- --seeds "$seeds" || true
}
