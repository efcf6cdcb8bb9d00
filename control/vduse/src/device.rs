//! One device: a thread between the kernel's words and a daemon's socket.
//!
//! Not what is said on either side (`abi`, `front_end`). Whatever the daemon does, each word of the kernel is answered in
//! time, since it breaks a device for good whose answer is late.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tracing::{info, warn};
use vhost_user::RingAddresses;

use crate::abi::{self, Asked, DeviceConfig, KernelMessage, MESSAGE_BYTES, QueueInfo};
use crate::front_end::{FrontEnd, Lost, Ring};
use crate::memory::Memory;
use crate::spec::{ACCESS_PLATFORM, QUEUE_SIZE, QUEUES_MAX, Spec};
use crate::{Error, create, sys, tried};

/// Between two looks at what no descriptor tells.
const TICK_MS: i64 = 200;
const DRIVER_OK: u8 = 4;

const SERVE: u8 = 0;
const LEAVE: u8 = 1;
const REMOVE: u8 = 2;

/// A device that is served. Dropping it leaves the thread as it is.
#[derive(Debug)]
pub struct Device {
    wish: Arc<AtomicU8>,
    thread: JoinHandle<Result<(), Error>>,
}

impl Device {
    /// Makes the device, or takes it up where a former process left it, and serves it on a thread of its own.
    ///
    /// # Errors
    /// No thread.
    pub fn start(spec: Spec) -> std::io::Result<Device> {
        let wish = Arc::new(AtomicU8::new(SERVE));
        let theirs = Arc::clone(&wish);
        let thread = std::thread::Builder::new()
            .name(format!("vduse {}", spec.name))
            .spawn(move || Bridge::open(spec)?.serve(&theirs))?;
        Ok(Device { wish, thread })
    }

    /// The kernel's device is to be taken away.
    pub fn remove(&self) {
        self.wish.store(REMOVE, Ordering::Relaxed);
    }

    /// The kernel's device stays, its requests wait, and whoever serves it next goes on with them.
    pub fn leave(&self) {
        self.wish.store(LEAVE, Ordering::Relaxed);
    }

    /// Whether its thread has come to its end.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// How it ended; waits for that.
    ///
    /// # Errors
    /// Why it could not be, or not go on.
    pub fn end(self) -> Result<(), Error> {
        self.thread
            .join()
            .unwrap_or_else(|_| Err(Error::Daemon("a defect of this program".to_string())))
    }
}

struct Queue {
    kick: OwnedFd,
    call: OwnedFd,
}

struct Bridge {
    spec: Spec,
    control: File,
    device: File,
    queues: Vec<Queue>,
    /// The driver uses its rings.
    is_running: bool,
    front: Option<FrontEnd>,
    /// The rings are the daemon's: of this connection, and since the last reset.
    is_started: bool,
    /// What was said of the daemon last, so that it is said once.
    said: String,
}

impl Bridge {
    fn open(spec: Spec) -> Result<Bridge, Error> {
        let lost = |error: Lost| Error::Daemon(error.to_string());
        let control = create::open_control()?;
        let mut front = FrontEnd::connect(&spec.socket).map_err(lost)?;
        let mark = spec.mark();
        let is_new = !create::exists(&spec.name);
        if is_new {
            let config = spec.config(&mut front).map_err(lost)?;
            std::fs::write(&mark, []).map_err(tried("the folder for what is in flight"))?;
            let queues = spec.queues(&front);
            let features = spec.features(front.features);
            let (name, config) = (spec.name.as_str(), config.as_slice());
            let device_id = spec.device_id();
            create::create(&control, &DeviceConfig { name, device_id, features, queues, config })?;
        } else if !mark.exists() {
            return Err(Error::Taken(spec.name));
        }
        let device = create::open(&spec.name)?;
        let mut queues = Vec::new();
        // The kernel refuses a number that the device does not have.
        while (queues.len() as u32) < QUEUES_MAX {
            let index = queues.len() as u32;
            if sys::call(&device, &mut abi::vq_get_info(index)).is_err() {
                break;
            }
            if is_new {
                let mut setup = abi::vq_setup(index, QUEUE_SIZE);
                sys::call(&device, &mut setup).map_err(tried("a queue of VDUSE"))?;
            }
            let signal = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let signal = || signal().map_err(|error| tried("an eventfd")(error.into()));
            queues.push(Queue { kick: signal()?, call: signal()? });
        }
        let mut bridge = Bridge {
            spec,
            control,
            device,
            queues,
            is_running: false,
            front: Some(front),
            is_started: false,
            said: String::new(),
        };
        bridge.is_running = bridge.info(0)?.is_ready;
        Ok(bridge)
    }

    fn serve(mut self, wish: &AtomicU8) -> Result<(), Error> {
        let mut adding = match create::is_on_bus(&self.spec.name) {
            true => {
                info!(device = self.spec.name, "the kernel has it: taken up");
                self.tell_config();
                None
            }
            false => Some(self.spec.ask_bus("add")?),
        };
        let mut removing: Option<Child> = None;
        loop {
            self.start_rings();
            self.wait()?;
            if let Some(over) = adding.as_mut().and_then(over) {
                adding = None;
                over?;
                info!(device = self.spec.name, "the kernel has it");
            }
            match (wish.load(Ordering::Relaxed), removing.as_mut().map(over)) {
                (_, Some(Some(over))) => {
                    over?;
                    break;
                }
                (LEAVE, None) => {
                    self.stop_rings();
                    return Ok(());
                }
                (REMOVE, None) if adding.is_none() => removing = Some(self.spec.ask_bus("del")?),
                _ => {}
            }
        }
        let Bridge { spec, control, device, .. } = self;
        drop(device);
        create::destroy(&control, &spec.name)?;
        std::fs::remove_file(spec.mark()).map_err(tried("the folder for what is in flight"))?;
        info!(device = spec.name, "the kernel has it no more");
        Ok(())
    }

    /// Until something is to be done, or a tick is over; then does it.
    fn wait(&mut self) -> Result<(), Error> {
        let mut polled = vec![PollFd::new(&self.device, PollFlags::IN)];
        polled.extend(self.queues.iter().map(|queue| PollFd::new(&queue.call, PollFlags::IN)));
        let ends = self.front.iter().flat_map(FrontEnd::descriptors);
        polled
            .extend(ends.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP)));
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK_MS * 1_000_000 };
        match poll(&mut polled, Some(&tick)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(tried("poll")(error.into())),
        }
        let is_ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(polled);
        let calls = &is_ready[1..=self.queues.len()];
        for (index, _) in calls.iter().enumerate().filter(|(_, is_called)| **is_called) {
            self.call_driver(index as u32);
        }
        if let [has_gone, channel @ ..] = &is_ready[1 + self.queues.len()..] {
            // It says nothing there without being asked.
            if *has_gone {
                self.lose("the daemon has closed its socket");
            } else if channel.contains(&true)
                && self.front.as_mut().is_some_and(FrontEnd::config_has_changed)
            {
                self.tell_config();
            }
        }
        if is_ready[0] { self.hear_kernel() } else { Ok(()) }
    }

    fn call_driver(&self, index: u32) {
        let Some(queue) = self.queues.get(index as usize) else { return };
        let _ = rustix::io::read(&queue.call, &mut [0; 8]);
        // It fails while the driver has no queue there: then nobody waits.
        let _ = sys::call(&self.device, &mut abi::vq_inject_irq(index));
    }

    fn hear_kernel(&mut self) -> Result<(), Error> {
        let mut bytes = [0; MESSAGE_BYTES];
        let length = match (&self.device).read(&mut bytes) {
            Ok(length) => length,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Ok(());
            }
            Err(error) => return Err(tried("the kernel's words (the device is broken)")(error)),
        };
        let Some(message) = KernelMessage::parse(&bytes[..length]) else { return Ok(()) };
        let mut stands_at = 0;
        let done = match message.asked {
            Asked::Status(0) => {
                self.stop_rings();
                self.is_running = false;
                true
            }
            Asked::Status(status) => {
                if status & DRIVER_OK != 0 && !self.is_running {
                    self.is_running = true;
                    // Rings that begin anew have nothing in flight.
                    let cleared = File::create(self.spec.mark());
                    cleared.map_err(tried("the record of what is in flight"))?;
                }
                true
            }
            Asked::Iotlb { .. } => {
                self.stop_rings();
                true
            }
            Asked::QueueState(queue) => match self.base(queue) {
                Ok(base) => (stands_at = base, true).1,
                Err(_) => false,
            },
            Asked::Unknown(_) => false,
        };
        let answer = message.answer(done, stands_at);
        (&self.device).write_all(&answer).map_err(tried("an answer to the kernel"))
    }

    /// Nothing of the rings is touched by the daemon when this returns, and their memory is no more its.
    fn stop_rings(&mut self) {
        let Some(mut front) = self.front.take() else { return };
        if !std::mem::take(&mut self.is_started) {
            self.front = Some(front);
            return;
        }
        for index in 0..self.queues.len() as u32 {
            if let Err(error) = front.stop(index) {
                // It has lost the connection then, and touches nothing that it was lent there.
                warn!(device = self.spec.name, "its rings did not stop in order: {error}");
                break;
            }
        }
        // What was lent goes with the connection.
    }

    /// Connects, if need be, and gives the daemon the rings that the driver uses.
    fn start_rings(&mut self) {
        if self.front.is_none() {
            match FrontEnd::connect(&self.spec.socket) {
                Ok(front) => {
                    self.front = Some(front);
                    self.tell_config();
                }
                Err(error) => return self.say(&error.to_string()),
            }
        }
        if !self.is_running || self.is_started {
            return;
        }
        match self.try_start() {
            Ok(()) => {
                self.is_started = true;
                self.said.clear();
                info!(device = self.spec.name, "the daemon serves it");
                // A call may have been lost between two daemons.
                (0..self.queues.len() as u32).for_each(|index| self.call_driver(index));
            }
            Err(error) => {
                let error = error.to_string();
                self.lose(&error);
            }
        }
    }

    fn try_start(&mut self) -> Result<(), Error> {
        let mut request = abi::get_features();
        sys::call(&self.device, &mut request).map_err(tried("the driver's features"))?;
        let taken = request.answer() & !ACCESS_PLATFORM;
        let memory = Memory::of(&self.device)?;
        let infos: Result<Vec<_>, _> =
            (0..self.queues.len() as u32).map(|index| self.info(index)).collect();
        let infos = infos?;
        let Some(front) = &mut self.front else { return Ok(()) };
        let lacking = taken & !front.features & !self.spec.own_features();
        if lacking != 0 {
            return Err(Error::Daemon(format!(
                "the daemon does not offer what the driver uses (features {lacking:#x})"
            )));
        }
        let lost = |error: Lost| Error::Daemon(error.to_string());
        let record = self.spec.record(front, self.queues.len() as u16)?;
        let record = record.as_ref().map(|(area, file)| (*area, file.as_fd()));
        front.begin(taken & front.features, memory.lent(), record).map_err(lost)?;
        for ((index, info), queue) in infos.iter().enumerate().zip(&self.queues) {
            if !info.is_ready {
                continue;
            }
            // Here, since a reset takes it away. Kicks that came meanwhile are made up for.
            let mut kickfd = abi::vq_setup_kickfd(index as u32, queue.kick.as_raw_fd());
            sys::call(&self.device, &mut kickfd).map_err(tried("a queue's kicks"))?;
            let QueueInfo { size, descriptors, driver, device, .. } = *info;
            let addresses = RingAddresses { descriptors, driver, device, log: 0, logged: false };
            let (kick, call) = (queue.kick.as_fd(), queue.call.as_fd());
            let base = memory.used_index(device)?;
            front.start(index as u32, &Ring { size, base, addresses, kick, call }).map_err(lost)?;
        }
        Ok(())
    }

    fn info(&self, index: u32) -> Result<QueueInfo, Error> {
        let mut request = abi::vq_get_info(index);
        sys::call(&self.device, &mut request).map_err(tried("where a queue is"))?;
        Ok(request.answer())
    }

    /// Where a queue stands.
    fn base(&self, index: u32) -> Result<u16, Error> {
        let info = self.info(index)?;
        match info.is_ready {
            true => Memory::of(&self.device)?.used_index(info.device),
            false => Ok(info.available_index),
        }
    }

    /// The kernel hears what the config space is now: a disk's size.
    fn tell_config(&mut self) {
        let Some(front) = &mut self.front else { return };
        match self.spec.config(front) {
            Ok(config) => {
                let told = sys::call(&self.device, &mut abi::set_config(&config))
                    .and_then(|_| sys::call(&self.device, &mut abi::inject_config_irq()));
                // Before the driver is there, it cannot be told, and reads the bytes itself.
                if let (Err(error), true) = (told, self.is_running) {
                    warn!(device = self.spec.name, "the kernel does not hear of its size: {error}");
                }
            }
            Err(error) => self.lose(&error.to_string()),
        }
    }

    fn lose(&mut self, why: &str) {
        (self.front, self.is_started) = (None, false);
        self.say(why);
    }

    fn say(&mut self, why: &str) {
        if self.said != why {
            warn!(device = self.spec.name, "waits: {why}");
            self.said = why.to_string();
        }
    }
}

/// Whether the bus has done what it was asked, and how.
fn over(child: &mut Child) -> Option<Result<(), Error>> {
    let status = match child.try_wait() {
        Ok(status) => status?,
        Err(error) => return Some(Err(Error::Bus(error.to_string()))),
    };
    if status.success() {
        return Some(Ok(()));
    }
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        // A line, from a process that has ended.
        let _ = stderr.take(4096).read_to_string(&mut said);
    }
    Some(Err(Error::Bus(said.trim().to_string())))
}

#[cfg(test)]
mod tests;
