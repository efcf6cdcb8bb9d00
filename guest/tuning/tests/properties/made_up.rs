//! A made-up guest: files, links, parameters and a journal in memory, with what a kernel does beside a write, and a
//! crash at whichever step.

use std::collections::{BTreeMap, BTreeSet};

use tuning::value::{choices, shown};
use tuning::{Place, System, Trouble};

/// What a crash does to the step at which it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    /// The step is not done; of a note so much is there, in 256ths.
    Before(u8),
    /// The step is done, and nobody hears that.
    After,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct MadeUp {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) links: BTreeMap<String, String>,
    pub(crate) parameters: BTreeMap<(String, String), String>,
    pub(crate) journal: Vec<u8>,
    /// Writes of these places are refused.
    pub(crate) refused: BTreeSet<String>,
    /// All that was written, in order.
    pub(crate) written: Vec<Place>,
    /// Steps that changed something.
    pub(crate) steps: usize,
    pub(crate) crash: Option<(usize, Crash)>,
    pub(crate) is_dead: bool,
}

/// All that a guest keeps, but what was counted of it.
pub(crate) type Kept = (BTreeMap<String, Vec<u8>>, BTreeMap<(String, String), String>, Vec<u8>);

impl MadeUp {
    pub(crate) fn file(mut self, path: &str, text: &str) -> MadeUp {
        self.files.insert(path.to_owned(), text.as_bytes().to_vec());
        self
    }

    pub(crate) fn linked(mut self, path: &str, to: &str) -> MadeUp {
        self.links.insert(path.to_owned(), to.to_owned());
        self
    }

    /// A guest with so many vCPUs and nothing else.
    pub(crate) fn guest(vcpus: u32) -> MadeUp {
        MadeUp::default()
            .file("proc/cpuinfo", "processor : 0\nflags : fpu hypervisor rdrand\n")
            .file("proc/cmdline", "root=/dev/vda1 quiet\n")
            .file("proc/sys/kernel/random/boot_id", "6b9f\n")
            .file("proc/sys/kernel/osrelease", "6.1.0\n")
            .file("sys/devices/system/cpu/online", &format!("0-{}\n", vcpus - 1))
    }

    pub(crate) fn disk(self, name: &str, scheduler: &str, wbt: &str, affinity: &str) -> MadeUp {
        let queue = format!("sys/block/{name}/queue");
        let made = self
            .linked(&format!("sys/block/{name}"), &format!("../devices/pci0/virtio-{name}/{name}"))
            .linked(&format!("sys/block/{name}/device/driver"), "../../bus/drivers/virtio_blk")
            .file(&format!("sys/block/{name}/diskseq"), "9\n")
            .file(&format!("sys/block/{name}/mq/0/nr_tags"), "256\n")
            .file(&format!("{queue}/scheduler"), scheduler)
            .file(&format!("{queue}/nr_requests"), "64\n")
            .file(&format!("{queue}/wbt_lat_usec"), wbt)
            .file(&format!("{queue}/rq_affinity"), affinity);
        match scheduler.contains("[mq-deadline]") {
            true => made.file(&format!("{queue}/iosched/read_expire"), "777\n"),
            false => made,
        }
    }

    pub(crate) fn nic(mut self, name: &str, combined: u32, most: u32) -> MadeUp {
        let mut set = |parameter: &str, value: String| {
            self.parameters.insert((name.to_owned(), parameter.to_owned()), value);
        };
        set("combined", combined.to_string());
        set("combined-max", most.to_string());
        set("rx-usecs", "0".to_owned());
        set("tx-usecs", "8".to_owned());
        set("feature-tx-checksum-ip-generic", "off".to_owned());
        set("feature-tx-tcp-segmentation", "off".to_owned());
        set("feature-rx-gro", "on".to_owned());
        set("feature-tx-scatter-gather", "off-fixed".to_owned());
        let class = format!("sys/class/net/{name}");
        self.linked(&class, &format!("../../devices/pci0/virtio-{name}/net/{name}"))
            .linked(&format!("{class}/device"), &format!("../../../virtio-{name}"))
            .linked(&format!("{class}/device/driver"), "../../bus/drivers/virtio_net")
            .file(&format!("{class}/device/features"), &("0".repeat(53) + "1" + &"0".repeat(10)))
            .file(&format!("{class}/gro_flush_timeout"), "0\n")
            .file(&format!("{class}/napi_defer_hard_irqs"), "0\n")
            .file(
                "proc/interrupts",
                &format!(
                    "  CPU0 CPU1\n 24: 1 2 MSI virtio-{name}-input.0\n 25: 1 2 MSI virtio-{name}-input.1\n"
                ),
            )
            .file("proc/irq/24/smp_affinity_list", "0\n")
            .file("proc/irq/25/smp_affinity_list", "0-1\n")
    }

    /// What is there, to be compared.
    pub(crate) fn kept(&self) -> Kept {
        (self.files.clone(), self.parameters.clone(), self.journal.clone())
    }

    /// The next process, after a crash.
    pub(crate) fn revived(mut self) -> MadeUp {
        (self.crash, self.is_dead, self.steps) = (None, false, 0);
        self
    }

    pub(crate) fn text(&self, path: &str) -> String {
        String::from_utf8_lossy(self.files.get(path).map_or(&[], Vec::as_slice)).trim().to_owned()
    }

    pub(crate) fn set(&mut self, path: &str, text: &str) {
        self.files.insert(path.to_owned(), text.as_bytes().to_vec());
    }

    /// Does a step, unless the crash comes before it.
    fn step(&mut self, step: impl FnOnce(&mut MadeUp, Option<u8>)) -> Result<(), Trouble> {
        let dead = || Err(Trouble::Refused("this process is dead".to_owned()));
        if self.is_dead {
            return dead();
        }
        let crash = self.crash.filter(|(at, _)| *at == self.steps).map(|(_, crash)| crash);
        self.steps += 1;
        match crash {
            Some(Crash::Before(part)) => step(self, Some(part)),
            _ => step(self, None),
        }
        self.is_dead = crash.is_some();
        if self.is_dead { dead() } else { Ok(()) }
    }

    /// What a kernel does when a scheduler comes: its numbers are new, and so is the queue's.
    fn scheduler_comes(&mut self, queue: &str, scheduler: &str) {
        let own = format!("{queue}/iosched/");
        self.files.retain(|path, _| !path.starts_with(&own));
        self.set(&format!("{queue}/nr_requests"), "256\n");
        if scheduler == "mq-deadline" {
            self.set(&format!("{own}read_expire"), "500\n");
        }
    }

    /// What a driver does: queues are spread over vCPUs anew, and segmentation comes and goes with checksums.
    fn parameter_comes(&mut self, nic: &str, parameter: &str, value: &str) {
        if parameter == "feature-tx-checksum-ip-generic" {
            let other = (nic.to_owned(), "feature-tx-tcp-segmentation".to_owned());
            self.parameters.insert(other, value.to_owned());
        }
        if parameter == "combined" {
            let own = if value == "1" { "0-1\n" } else { "1\n" };
            for irq in [24, 25] {
                self.set(&format!("proc/irq/{irq}/smp_affinity_list"), own);
            }
        }
    }

    fn store(&mut self, place: &Place, value: &str) {
        match place {
            Place::Nic { nic, parameter } => {
                self.parameters.insert((nic.clone(), parameter.clone()), value.to_owned());
                self.parameter_comes(nic, parameter, value);
            }
            Place::File(path) => {
                let before = String::from_utf8_lossy(&self.files[path]).into_owned();
                self.files.insert(path.clone(), shown(&before, value).into_bytes());
                if let Some(queue) = path.strip_suffix("/scheduler") {
                    self.scheduler_comes(queue, value);
                }
            }
        }
    }

    /// Whether a kernel would take it.
    fn takes(&self, place: &Place, value: &str) -> Result<(), Trouble> {
        let is_there = match place {
            Place::File(path) => self.files.contains_key(path),
            Place::Nic { nic, parameter } => {
                self.parameters.contains_key(&(nic.clone(), parameter.clone()))
            }
        };
        if !is_there {
            return Err(Trouble::Absent);
        }
        let offered = match place {
            Place::File(path) => self.text(path),
            Place::Nic { .. } => String::new(),
        };
        let is_known = !offered.contains('[') || choices(&offered).any(|it| it == value);
        let is_refused = self.refused.contains(&place.to_string());
        match is_known && !is_refused {
            true => Ok(()),
            false => Err(Trouble::Refused("Invalid argument".to_owned())),
        }
    }
}

impl System for MadeUp {
    fn bytes(&mut self, path: &str, most: usize) -> Result<Vec<u8>, Trouble> {
        let bytes = self.files.get(path).ok_or(Trouble::Absent)?;
        if bytes.len() > most { Err(Trouble::TooLong) } else { Ok(bytes.clone()) }
    }

    fn names(&mut self, folder: &str) -> Result<Vec<String>, Trouble> {
        let below = |path: &String| {
            let rest = path.strip_prefix(folder)?.strip_prefix('/')?;
            rest.split('/').next().map(str::to_owned)
        };
        let all = self.files.keys().chain(self.links.keys());
        let names: BTreeSet<String> = all.filter_map(below).collect();
        if names.is_empty() { Err(Trouble::Absent) } else { Ok(names.into_iter().collect()) }
    }

    fn link(&mut self, path: &str) -> Result<String, Trouble> {
        self.links.get(path).cloned().ok_or(Trouble::Absent)
    }

    fn parameter(&mut self, nic: &str, parameter: &str) -> Result<String, Trouble> {
        let found = self.parameters.get(&(nic.to_owned(), parameter.to_owned()));
        found.cloned().ok_or(Trouble::Absent)
    }

    fn write(&mut self, place: &Place, value: &str) -> Result<(), Trouble> {
        if !self.is_dead {
            self.takes(place, value)?;
        }
        self.step(|made_up, crashed| {
            if crashed.is_none() {
                made_up.written.push(place.clone());
                made_up.store(place, value);
            }
        })
    }

    fn journal(&mut self) -> Result<Vec<u8>, Trouble> {
        Ok(self.journal.clone())
    }

    fn note(&mut self, line: &str) -> Result<(), Trouble> {
        self.step(|made_up, crashed| {
            let whole = line.len();
            let length = crashed.map_or(whole, |part| whole * usize::from(part) / 256);
            made_up.journal.extend(&line.as_bytes()[..length]);
        })
    }

    fn cut(&mut self, length: usize) -> Result<(), Trouble> {
        self.step(|made_up, crashed| {
            if crashed.is_none() {
                made_up.journal.truncate(length);
            }
        })
    }

    fn forget(&mut self) -> Result<(), Trouble> {
        self.step(|made_up, crashed| {
            if crashed.is_none() {
                made_up.journal.clear();
            }
        })
    }
}
