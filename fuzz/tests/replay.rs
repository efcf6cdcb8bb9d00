//! Each target on its seeds and on a fixed number of mutations of them, which are the same in every run.
//!
//! Not the search for more, which is libFuzzer's (`src/bin/`). With `FUZZ_CORPUS=FOLDER` also on what that has
//! found: the files of `FOLDER/TARGET`.

#![expect(clippy::disallowed_macros, reason = "a test prints what it was given")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use random::Random;
use rustix::process::{Resource, getrlimit, setrlimit};
use virtqueue::Format;

/// Bytes of an input, as libFuzzer is told.
const BYTES_MAX: usize = 4096;
/// Bytes that all targets together may hold.
const MEMORY_MAX: u64 = 1 << 30;
/// An input that takes longer has hung.
const PATIENCE: Duration = Duration::from_secs(60);
/// Numbers at which things turn.
const EDGES: [u64; 12] =
    [0, 1, 2, 7, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

/// One test for each target, so that a failure has its name. `./x test fuzz` runs them by that of the module.
mod replayed {
    use super::*;

    #[test]
    fn ring_split() {
        replay("ring_split", 5_000, |input| fuzz::ring::run(Format::Split, input));
    }

    #[test]
    fn ring_packed() {
        replay("ring_packed", 5_000, |input| fuzz::ring::run(Format::Packed, input));
    }

    #[test]
    fn session() {
        replay("session", 5_000, fuzz::session::run);
    }

    #[test]
    fn config() {
        replay("config", 5_000, fuzz::operator::run);
    }

    #[test]
    fn net_header() {
        replay("net_header", 5_000, fuzz::net::run);
    }

    #[test]
    fn switch() {
        replay("switch", 5_000, fuzz::bridge::run);
    }

    #[test]
    fn estate() {
        replay("estate", 5_000, fuzz::estate::run);
    }

    #[test]
    fn wire() {
        replay("wire", 5_000, fuzz::wire::run);
    }
}

/// Runs a target. The input at which it panics, hangs or takes too much memory stays in a file.
fn replay(name: &str, mutations: usize, target: fn(&[u8])) {
    bound_memory();
    let seeds = seeds(name);
    println!("{name}: {} seeds, {mutations} mutations", seeds.len());
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
    let input_kept = File::create(&kept).expect("create the file of the input");
    let (done, each) = channel();
    let worker = thread::spawn(move || {
        let mut random = Random::new(1, seeds.len() as u64);
        let mutated = (0..mutations).map(|_| mutation(&mut random, &seeds));
        for input in seeds.iter().cloned().chain(mutated) {
            input_kept.set_len(input.len() as u64).expect("cut the file of the input");
            input_kept.write_all_at(&input, 0).expect("keep the input");
            target(&input);
            done.send(()).expect("the test waits");
        }
    });
    let wrong = loop {
        match each.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => break worker.join().err(),
            Err(RecvTimeoutError::Timeout) => break Some(Box::new("an input hangs")),
        }
    };
    if let Some(wrong) = wrong {
        eprintln!("{name}: the input is kept in {}: {}", kept.display(), hex(&kept));
        resume_unwind(wrong);
    }
    fs::remove_file(kept).expect("remove the file of the input");
}

/// Whoever takes more ends with the process, and the input stays.
fn bound_memory() {
    let bound = rustix::process::Rlimit { current: Some(MEMORY_MAX), ..getrlimit(Resource::Data) };
    setrlimit(Resource::Data, bound).expect("bound the memory");
}

fn hex(file: &Path) -> String {
    fs::read(file).unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// In the order of their names: mutations of a fixed seed are to be the same everywhere.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let found = std::env::var_os("FUZZ_CORPUS").map(PathBuf::from);
    let mut files = Vec::new();
    for folder in [checked_in].into_iter().chain(found) {
        let Ok(entries) = fs::read_dir(folder.join(name)) else { continue };
        files.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    files.sort();
    assert!(!files.is_empty(), "{name} has no seeds");
    files.iter().map(|file| fs::read(file).expect("a seed")).collect()
}

/// A seed that was changed in a few places.
fn mutation(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = one(random, seeds).to_vec();
    for _ in 0..1 << random.below(5) {
        change(random, seeds, &mut input);
    }
    input.truncate(BYTES_MAX);
    input
}

fn one<'a>(random: &mut Random, seeds: &'a [Vec<u8>]) -> &'a [u8] {
    &seeds[random.below(seeds.len() as u64) as usize]
}

fn change(random: &mut Random, seeds: &[Vec<u8>], input: &mut Vec<u8>) {
    let at = random.below(input.len() as u64) as usize;
    let len = random.between(1, 16).min((input.len() - at) as u64) as usize;
    let drawn = random.next().to_le_bytes();
    match random.below(7) {
        0 if len > 0 => input[at] ^= 1 << random.below(8),
        1 if len > 0 => input[at] = drawn[0],
        2 => {
            let edge = random.of(&EDGES).to_le_bytes();
            let width = len.min(random.of(&[1, 2, 4, 8]));
            input[at..at + width].copy_from_slice(&edge[..width]);
        }
        3 => drop(input.drain(at..at + len)),
        4 => drop(input.splice(at..at, drawn[..random.between(1, 8) as usize].iter().copied())),
        // A part once more.
        5 => {
            let part = input[at..at + len].to_vec();
            let to = random.below(input.len() as u64) as usize;
            input.splice(to..to, part);
        }
        // The end of another.
        _ => {
            let other = one(random, seeds);
            input.truncate(at);
            input.extend_from_slice(&other[random.below(other.len() as u64) as usize..]);
        }
    }
}
