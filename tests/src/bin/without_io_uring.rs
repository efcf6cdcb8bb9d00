//! Becomes the program that its arguments name, in a process that may make no io_uring: as in a container
//! with the usual list of system calls, or where `kernel.io_uring_disabled` is 2.
//!
//! Run by `tests/host.rs`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::io::Errno;
use seccompiler::{SeccompAction, SeccompFilter};

/// `io_uring_setup`, the same number on every architecture.
const IO_URING_SETUP: i64 = 425;

fn main() -> Result<()> {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().context("which program?")?;
    let filter = SeccompFilter::new(
        BTreeMap::from([(IO_URING_SETUP, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(Errno::PERM.raw_os_error() as u32),
        std::env::consts::ARCH.try_into().context("an architecture without filters")?,
    )?;
    let program_of_filter: seccompiler::BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program_of_filter)?;
    Err(Command::new(program).args(words).exec()).context("exec")
}
