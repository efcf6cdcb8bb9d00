# shellcheck shell=bash
# What a machine with only Debian 12 lacks: Debian packages and Rust. Installs them when root,
# otherwise says the exact line to run. Sourced by ./x.

# need_packages PACKAGE...: installed, or installed now.
need_packages() {
    local package missing=()
    for package; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
            missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    if ((EUID != 0)); then
        die "these Debian packages are missing: ${missing[*]}" \
            "sudo apt-get install --no-install-recommends -y ${missing[*]}"
    fi
    say "installing ${missing[*]} (Debian packages)"
    apt_lists
    DEBIAN_FRONTEND=noninteractive apt-get install --no-install-recommends -y \
        -o DPkg::Lock::Timeout=120 "${missing[@]}" >"$BUILD/apt.log" 2>&1 || {
        show_tail "$BUILD/apt.log" 'the end of what apt said'
        die "apt could not install ${missing[*]}" "look at $BUILD/apt.log, mend apt, run this again"
    }
}

# apt_lists: the lists of packages are there and at most a day old.
apt_lists() {
    local lists=/var/lib/apt/lists
    if [[ -z $(find "$lists" -maxdepth 1 -name '*_Packages*' -mtime -1 -print -quit 2>/dev/null) ]]; then
        ((EUID == 0)) || return 0
        say 'fetching the lists of Debian packages'
        apt-get update >"$BUILD/apt.log" 2>&1 ||
            die 'apt-get update failed' "look at $BUILD/apt.log; is the network there?"
    fi
}

# need_rust: cargo, of the release that the workspace asks for or newer.
need_rust() {
    # shellcheck source=/dev/null
    if [[ -f $HOME/.cargo/env && -z $(command -v cargo) ]]; then . "$HOME/.cargo/env"; fi
    need_packages gcc libc6-dev
    if ! command -v cargo >/dev/null; then
        need_packages curl ca-certificates
        say 'installing Rust (rustup, minimal profile)'
        curl --proto '=https' --tlsv1.2 -fsS https://sh.rustup.rs |
            sh -s -- -y --profile minimal -c rustfmt -c clippy >"$BUILD/rustup.log" 2>&1 || {
            show_tail "$BUILD/rustup.log" 'the end of what rustup said'
            die 'rustup could not install Rust' 'install Rust from https://rustup.rs, run this again'
        }
        # shellcheck source=/dev/null
        . "$HOME/.cargo/env"
    fi
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml" | head -n 1)
    have=$(cargo --version | awk '{ print $2 }')
    [[ $(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1) == "$wanted" ]] ||
        die "cargo is $have; the workspace needs $wanted or newer" 'rustup update stable; without rustup, install Rust from https://rustup.rs'
}

# need_llvm_tools: llvm-profdata and llvm-cov of the compiler's own LLVM; Debian's cannot read its files.
need_llvm_tools() {
    LLVM_TOOLS=$(rustc --print target-libdir)/../bin
    [[ ! -x $LLVM_TOOLS/llvm-cov || ! -x $LLVM_TOOLS/llvm-profdata ]] || return 0
    command -v rustup >/dev/null ||
        die 'llvm-cov of this compiler is missing, and there is no rustup' 'install the llvm-tools that belong to your Rust'
    say 'installing llvm-tools (a part of Rust)'
    rustup component add llvm-tools >"$BUILD/rustup.log" 2>&1 || {
        show_tail "$BUILD/rustup.log" 'the end of what rustup said'
        die 'rustup could not install llvm-tools' 'rustup component add llvm-tools'
    }
}

# need_guests: what building and running test guests takes.
need_guests() {
    need_packages gcc libc6-dev linux-libc-dev qemu-system-x86 busybox-static fio e2fsprogs util-linux cpio jq socat procps \
        binutils iproute2 iputils-ping ethtool iperf3 memcached libmemcached-tools sockperf sqlite3
}

# need_testpmd: DPDK's test program with the drivers for vhost-user, of both sides.
need_testpmd() {
    need_packages dpdk-dev librte-net-virtio23 librte-net-vhost23 librte-mempool-ring23
}

# need_newer_qemu: unpacked in build/qemu-newer: without KVM Debian 12's takes no MSI-X vectors of vhost-user NICs.
need_newer_qemu() {
    local place=$BUILD/qemu-newer package apt
    [[ ! -x $place/root/usr/bin/qemu-system-x86_64 && ! -d /sys/module/kvm_intel && ! -d /sys/module/kvm_amd ]] || return 0
    say 'downloading a newer QEMU (not installed, only unpacked)'
    apt_of "$place" bookworm-backports
    (cd "$place" && "${apt[@]}" update &&
        "${apt[@]}" download qemu-system-x86 qemu-system-data seabios) >"$BUILD/apt.log" 2>&1 || {
        show_tail "$BUILD/apt.log" 'the end of what apt said'
        die 'apt could not download a newer QEMU' 'run this again where bookworm-backports can be reached'
    }
    for package in "$place"/*.deb; do dpkg-deb -x "$package" "$place/root"; done
}

# get_testpmd_13: Debian 13's testpmd with all that it needs down to libc, unpacked in build/debian-13. Nothing of it is
# installed: it is run by its own loader. Fails where it cannot be reached.
get_testpmd_13() {
    local place=$BUILD/debian-13 package apt
    [[ ! -f $place/complete ]] || return 0
    say "downloading Debian 13's DPDK (not installed, only unpacked)"
    apt_of "$place" trixie
    if ! { "${apt[@]}" update && "${apt[@]}" install --download-only --no-install-recommends -y dpdk-dev \
        librte-net-virtio25 librte-net-vhost25 librte-mempool-ring25; } >"$BUILD/apt.log" 2>&1; then
        show_tail "$BUILD/apt.log" 'the end of what apt said'
        return 1
    fi
    for package in "$place"/cache/archives/*.deb; do dpkg-deb -x "$package" "$place/root" || return 1; done
    rm -rf "$place"/{cache,lists}
    touch "$place/complete"
}

# get_fio: a fio with libblkio, which no Debian's has: the source of Debian 13's, built in build/fio with Debian 13's
# libblkio, which needs no newer libc than Debian 12's. FIO=PROGRAM takes another. Fails where it cannot be reached.
get_fio() {
    local place=$BUILD/fio package apt
    [[ -z ${FIO:-} && ! -x $place/fio ]] || return 0
    need_packages gcc libc6-dev make pkg-config
    say "downloading the source of Debian 13's fio, and libblkio (not installed)"
    apt_of "$place" trixie
    sed 's/^deb /deb-src /' "$place/sources.list" >"$place/more" && cat "$place/more" >>"$place/sources.list"
    if ! (cd "$place" && "${apt[@]}" update && "${apt[@]}" download libblkio1 libblkio-dev &&
        "${apt[@]}" source --tar-only --download-only fio) >"$BUILD/apt.log" 2>&1; then
        show_tail "$BUILD/apt.log" 'the end of what apt said'
        return 1
    fi
    mkdir -p "$place/source"
    tar -xf "$place"/fio_*.orig.tar.* -C "$place/source" --strip-components 1 || return 1
    for package in "$place"/*.deb; do dpkg-deb -x "$package" "$place/libblkio" || return 1; done
    rm -rf "$place"/{cache,lists}
    build_fio "$place"
}

# build_fio PLACE: fio, of PLACE/source with PLACE/libblkio.
build_fio() {
    local library=$1/libblkio/usr/lib/x86_64-linux-gnu
    say 'building fio (a minute or two)'
    (cd "$1/source" && export PKG_CONFIG_PATH=$library/pkgconfig PKG_CONFIG_SYSROOT_DIR=$1/libblkio &&
        ./configure --disable-native && grep -q '^CONFIG_LIBBLKIO=y' config-host.mak &&
        LDFLAGS="-L$library -Wl,-rpath,$library" make fio && cp fio "$1/fio") >"$BUILD/fio.log" 2>&1 || {
        show_tail "$BUILD/fio.log" 'the end of what building fio said'
        return 1
    }
}

# apt_of PLACE SUITE: in the array `apt`, apt-get with the packages of that suite of Debian alone, as on a machine that
# has none; what it downloads is in an empty PLACE.
apt_of() {
    local place=$1 mirror
    rm -rf "$place"
    mkdir -p "$place"/{lists/partial,cache/archives/partial}
    # shellcheck disable=SC2016  # apt's own words
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/$') ||
        die 'apt has no source of Debian' 'look into /etc/apt/sources.list'
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $2 main" >"$place/sources.list"
    : >"$place/status"
    apt=(apt-get -o "Dir::Etc::sourcelist=$place/sources.list" -o Dir::Etc::sourceparts=/nonexistent
        -o "Dir::State::lists=$place/lists" -o "Dir::State::status=$place/status" -o "Dir::Cache=$place/cache")
}
