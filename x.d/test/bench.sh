# shellcheck shell=bash
# GROUP: what a request costs: no allocation, and instructions beside the checked-in baseline
# Run by x.d/test.sh.

group_bench() {
    need_rust
    need_packages valgrind
    run_command pass cargo run --quiet --release -p bench -- pass --quick --instructions
}
