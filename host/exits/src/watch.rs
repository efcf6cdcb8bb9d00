//! The programs in the kernel: loaded and attached for as long as a [`Watch`] lives, armed by one word.
//!
//! Everything is a descriptor of this process, so that nothing is left when it ends, however it does.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bpf::Own;
use bpf::sys::{self, Keys, Kind, Map};
use rustix::io::Errno;

use crate::formats::{Event, Formats, Lacks};
use crate::layout::*;
use crate::program::{Maps, assemble};
use crate::refusal::Refusal;
use crate::tally::Held;

/// Where the kernel tells of its events, below the root; the first that is there.
const EVENTS: [&str; 2] = ["sys/kernel/tracing/events", "sys/kernel/debug/tracing/events"];
const ARMED_BYTES: u32 = 8;
const FIRST: [u8; 4] = [0; 4];

/// Programs that are attached.
#[derive(Debug)]
pub struct Watch {
    armed: Map,
    vcpus: Map,
    sums: Map,
    lost: Map,
    armed_ns: u64,
    /// Closed, they detach the programs.
    events: Vec<OwnedFd>,
    missing: Vec<String>,
}

impl Watch {
    /// Loads a program for each event that there is, and attaches it. Nothing is counted yet. Only exits of that process
    /// will be.
    ///
    /// # Errors
    /// Why it cannot be. Nothing is left behind.
    pub fn attach(root: &Path, process: u32) -> Result<Watch, Refusal> {
        bpf::namespaces().map_err(|own| match own {
            Own::Pids => Refusal::OwnPids,
            Own::Time => Refusal::OwnTime,
        })?;
        let (formats, missing) = formats(root)?;
        let map = |keys, words: usize, entries| {
            Map::new(keys, 8 * words as u32, entries).map_err(refused("a map"))
        };
        let mut watch = Watch {
            armed: map(Keys::Numbers, ARMED_BYTES as usize / 8, 1)?,
            vcpus: map(Keys::Hashed(4), vcpu::WORDS, VCPUS_MAX)?,
            sums: map(Keys::Hashed(key::BYTES), sum::WORDS, SUMS_MAX)?,
            lost: map(Keys::Numbers, LOST as usize, 1)?,
            armed_ns: 0,
            events: Vec::new(),
            missing,
        };
        for event in Event::ALL {
            watch.attach_one(event, &formats, process)?;
        }
        Ok(watch)
    }

    fn attach_one(&mut self, event: Event, formats: &Formats, process: u32) -> Result<(), Refusal> {
        let maps = Maps {
            armed: self.armed.number(),
            vcpus: self.vcpus.number(),
            sums: self.sums.number(),
            lost: self.lost.number(),
        };
        let number = formats.number(event);
        let Some((number, code)) = number.zip(assemble(event, formats, maps, process)) else {
            // What an event lacks was said as its text was read.
            return Ok(());
        };
        let step = |errno| match refused(event.name())(errno) {
            Refusal::Kernel { step, errno, .. } => {
                Refusal::Kernel { step, errno, says: sys::verdict(&code, Kind::Record) }
            }
            other => other,
        };
        let program = sys::load(&code, Kind::Record, event.name()).map_err(step)?;
        let attached = sys::attach_to_event(program.as_fd(), number);
        self.events.push(attached.map_err(refused("to attach a program"))?);
        Ok(())
    }

    /// What is not known here, and why.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Begins to count. `now_ns` is of the clock `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn arm(&mut self, now_ns: u64) -> Result<(), Refusal> {
        self.armed_ns = now_ns.max(1);
        self.write(self.armed_ns)
    }

    /// Ends counting; the programs stay attached, and what they counted where it is.
    ///
    /// # Errors
    /// The kernel's.
    pub fn disarm(&self) -> Result<(), Refusal> {
        self.write(0)
    }

    fn write(&self, word: u64) -> Result<(), Refusal> {
        self.armed.put(&FIRST, &word.to_ne_bytes()).map_err(refused("a word of a map"))
    }

    /// Detaches the programs and reads what they counted until `now_ns`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read(mut self, now_ns: u64) -> Result<Held, Refusal> {
        // The close waits for those that run still, so that nobody writes to the maps any more.
        self.events.clear();
        let all = |map: &Map| map.all().map_err(refused("to read a map"));
        let lost = all(&self.lost)?.into_iter().next();
        Ok(Held {
            vcpus: all(&self.vcpus)?,
            sums: all(&self.sums)?,
            lost: lost.map(|(_, value)| value).unwrap_or_default(),
            armed_ns: self.armed_ns,
            disarmed_ns: now_ns,
        })
    }
}

/// What the kernel tells of its events, and what cannot be known for lack of some.
fn formats(root: &Path) -> Result<(Formats, Vec<String>), Refusal> {
    let folder = folder(root)?;
    let (mut formats, mut missing) = (Formats::default(), Vec::new());
    for event in Event::ALL {
        let path = folder.join(event.folder()).join("format");
        let why = match std::fs::read_to_string(&path) {
            Ok(text) => match formats.add(event, &text) {
                Ok(()) => continue,
                Err(Lacks::Number) => "the event has no number".to_string(),
                Err(Lacks::Field(name)) => format!("the event has no field {name}"),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if event.is_needed() {
                    return Err(Refusal::NoKvm);
                }
                "this kernel has no such event".to_string()
            }
            Err(error) => return Err(Refusal::Events(folder, error.to_string())),
        };
        if event.is_needed() {
            return Err(Refusal::Needed(event.name(), why));
        }
        missing.push(format!("Not known: {}; {}: {why}", event.tells(), event.name()));
    }
    Ok((formats, missing))
}

fn folder(root: &Path) -> Result<PathBuf, Refusal> {
    for folder in EVENTS.map(|folder| root.join(folder)) {
        match std::fs::read_dir(&folder) {
            Ok(_) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Refusal::Events(folder, error.to_string())),
        }
    }
    Err(Refusal::NoEvents)
}

fn refused(step: &'static str) -> impl Fn(Errno) -> Refusal {
    move |errno| match errno {
        Errno::PERM => Refusal::NotPermitted,
        _ => Refusal::Kernel { step, errno, says: String::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_events_is_told_what_to_do() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(formats(root.path()).err(), Some(Refusal::NoEvents));
        let events = root.path().join(EVENTS[1]);
        std::fs::create_dir_all(&events).expect("a folder");
        let without_kvm = formats(root.path()).err();
        assert_eq!(without_kvm, Some(Refusal::NoKvm));
    }

    #[test]
    fn what_an_event_lacks_is_said_and_what_is_needed_ends_it() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |event: Event, text: &str| {
            let folder = root.path().join(EVENTS[0]).join(event.folder());
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("format"), text).expect("a file");
        };
        let names = ["exit_reason", "guest_rip", "isa", "info1", "intr_info"];
        let fields: String = (1..)
            .zip(names)
            .map(|(nth, name)| format!("field:u64 {name};\toffset:{};\tsize:8;\n", 8 * nth))
            .collect();
        write(Event::Exit, &format!("ID: 1\n{fields}"));
        write(Event::Entry, "ID: 2\n");
        write(Event::Msr, "ID: 3\n");
        let (found, missing) = formats(root.path()).expect("what is needed is there");
        assert_eq!(found.number(Event::Exit), Some(1));
        assert!(
            missing.contains(
                &"Not known: which MSRs; kvm_msr: the event has no field ecx".to_string()
            )
        );
        write(Event::Exit, "ID: 1\n");
        let why = Refusal::Needed("kvm_exit", "the event has no field exit_reason".to_string());
        assert_eq!(formats(root.path()).err(), Some(why));
    }
}
