# shellcheck shell=bash
# GROUP: front-ends that lie, stall and vanish, beside a disk that must not notice
# Run by x.d/test.sh.

group_hostile() {
    # shellcheck source=x.d/test/frontend.sh
    source "$ROOT/x.d/test/frontend.sh"
    need_sidecore
    daemon_tests bad_front_end bad_connection
}
