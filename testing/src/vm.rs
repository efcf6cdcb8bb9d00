//! A guest: QEMU with a stock kernel, whose disks and NICs a daemon serves over vhost-user.
//!
//! | module | what |
//! |---|---|
//! | `boot` | what a QEMU is started with |
//! | `examine` | what is looked at when a guest does not do what it should |
//! | `line` | the serial ports by which a guest takes orders and answers |
//! | `moves` | a guest that goes from one VM to another |
//! | `plug` | devices that come and go while a guest runs |

mod boot;
mod examine;
mod line;
mod moves;
mod plug;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bed::Bed;
use crate::clock::now_ns;
use crate::daemon::pause;
use crate::image::pack_guest;
use crate::place::Place;
use crate::qmp::Qmp;

pub use boot::{
    Boot, EMULATED, EMULATION, Kernel, NicOptions, boot_words, build_folder, has_kvm, model,
};
pub use line::record;
use line::{Answer, Line};
pub use moves::{Compared, Guest, Move, Moved, Phase};

/// The longest wait for a guest that starts, or says that it is somewhere.
const HELLO: Duration = Duration::from_secs(240);
/// So long an emulated machine may be without a word of its kernel before it is booted again.
const SILENCE: Duration = Duration::from_secs(120);
/// The longest wait for an order, unless its caller says more.
const ORDER: Duration = Duration::from_secs(150);
/// The longest wait for a guest's end.
const END: Duration = Duration::from_secs(300);
/// The longest wait for QEMU's monitor.
const MONITOR: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(10);

/// A file in the case's folder that says which VM was booted again.
pub const BOOTED_AGAIN: &str = "booted-again";

/// A VM that was started; killed when dropped.
#[derive(Debug)]
pub struct Vm {
    folder: PathBuf,
    boot: Boot,
    process: RefCell<Child>,
    line: RefCell<Line>,
    monitor: RefCell<Option<Qmp>>,
    orders: Cell<u64>,
}

/// An order that a guest is doing.
#[derive(Debug)]
pub struct Order(u64);

impl Vm {
    /// Starts QEMU; its files are in `folder`.
    ///
    /// # Errors
    /// QEMU does not start.
    pub fn start(folder: &Path, boot: Boot) -> Result<Vm> {
        if boot.is_stock() {
            pack_guest().context("packing the guest")?;
        }
        let line = Line::lay(folder, &boot.name, boot.after.as_deref())?;
        let process = launch(folder, &boot)?;
        // A guest that moves in goes on with the numbers of its orders.
        let orders = Cell::new(now_ns());
        Ok(Vm {
            folder: folder.to_path_buf(),
            boot,
            process: RefCell::new(process),
            line: RefCell::new(line),
            monitor: RefCell::new(None),
            orders,
        })
    }

    /// Starts it, and waits until it takes orders.
    ///
    /// # Errors
    /// As [`Vm::start`] and [`Vm::ready`].
    pub fn boot(folder: &Path, boot: Boot) -> Result<Vm> {
        let vm = Vm::start(folder, boot)?;
        vm.ready()?;
        Ok(vm)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.boot.name
    }

    /// Its QEMU's number.
    pub fn pid(&self) -> u32 {
        self.process.borrow().id()
    }

    /// The socket of its monitor.
    pub fn monitor_path(&self) -> PathBuf {
        self.file("qmp")
    }

    /// Waits until it takes orders.
    ///
    /// An emulated machine sometimes never enters its kernel, for whatever reason of QEMU's. It is booted again once,
    /// if its kernel has said nothing for two minutes, and the file [`BOOTED_AGAIN`] says so.
    ///
    /// # Errors
    /// It does not in four minutes, six where it is booted again; what its processors do is in the message.
    pub fn ready(&self) -> Result<()> {
        if self.boot.may_boot_again() {
            let is_there = self.await_line("READY orders", SILENCE);
            if is_there.is_ok() || !self.is_silent() || !self.is_alive() {
                return is_there.or_else(|_| self.await_said("orders"));
            }
            self.boot_again()?;
        }
        self.await_said("orders")
    }

    /// Nothing was heard of its kernel, nor of its init.
    fn is_silent(&self) -> bool {
        let line = self.line.borrow();
        line.console().is_empty() && line.said().is_empty()
    }

    fn boot_again(&self) -> Result<()> {
        let seen = self.examined();
        self.kill();
        *self.monitor.borrow_mut() = None;
        *self.line.borrow_mut() = Line::lay(&self.folder, &self.boot.name, None)?;
        *self.process.borrow_mut() = launch(&self.folder, &self.boot)?;
        std::fs::write(self.folder.join(format!("{}.silent", self.name())), seen)?;
        let mut again = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(BOOTED_AGAIN))?;
        Ok(writeln!(again, "{}", self.name())?)
    }

    /// Waits until a script of the guest's says `READY word`.
    ///
    /// # Errors
    /// As [`Vm::ready`].
    pub fn await_said(&self, word: &str) -> Result<()> {
        self.await_line(&format!("READY {word}"), HELLO)
    }

    /// Whether a script of the guest's has said `READY word`.
    pub fn has_said(&self, word: &str) -> bool {
        let wanted = format!("READY {word}");
        self.line.borrow().said().contains(&wanted)
    }

    /// The last word that begins so which a script has said by `READY`; without that beginning.
    pub fn last_said(&self, prefix: &str) -> Option<String> {
        let wanted = format!("READY {prefix}");
        let said = self.line.borrow().said();
        said.iter().rev().find_map(|line| line.strip_prefix(&wanted)).map(ToString::to_string)
    }

    fn await_line(&self, wanted: &str, within: Duration) -> Result<()> {
        self.until(&format!("`{wanted}`"), within, || {
            let has = self.line.borrow().said().iter().any(|line| line == wanted);
            Ok(has.then_some(()))
        })
    }

    /// Looks until there is something, while QEMU runs.
    fn until<T>(
        &self,
        what: &str,
        within: Duration,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let start = now_ns();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if !self.is_alive() {
                bail!(
                    "guest {} has ended while {what} is waited for: {}",
                    self.name(),
                    self.last_words()
                );
            }
            if u128::from(now_ns() - start) > within.as_nanos() {
                let seconds = within.as_secs();
                bail!("guest {} gave no {what} in {seconds} s: {}", self.name(), self.examined());
            }
            pause(LOOK);
        }
    }

    /// Runs shell words in the guest: what they say.
    ///
    /// # Errors
    /// They fail, or are not over in 150 s.
    pub fn run(&self, words: &str) -> Result<String> {
        self.run_within(ORDER, words)
    }

    /// As [`Vm::run`], with another bound.
    ///
    /// # Errors
    /// As [`Vm::run`].
    pub fn run_within(&self, within: Duration, words: &str) -> Result<String> {
        let order = self.begin(words)?;
        let (status, said) = self.end(order, within)?;
        ensure!(status == 0, "`{words}` in guest {} gave {status}: {}", self.name(), short(&said));
        Ok(said)
    }

    /// Sends shell words; [`Vm::end`] waits for their end. A guest does one order at a time.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&self, words: &str) -> Result<Order> {
        let number = self.orders.get() + 1;
        self.orders.set(number);
        // A command of several lines goes as one.
        self.line.borrow_mut().send(&format!("{number} {}", words.replace('\n', "\r")))?;
        Ok(Order(number))
    }

    /// Waits for the end of an order: its status, and what it said.
    ///
    /// # Errors
    /// It does not end in that time.
    pub fn end(&self, order: Order, within: Duration) -> Result<(i32, String)> {
        let Answer { status, output } =
            self.until("answer", within, || Ok(line::answer(&self.line.borrow().said(), order.0)))?;
        Ok((status, output))
    }

    /// Whether an order is over.
    pub fn is_over(&self, order: &Order) -> bool {
        line::answer(&self.line.borrow().said(), order.0).is_some()
    }

    /// Runs a script of `tests/guest/scripts` with these values of `arg_NAME`; each of its checks becomes one of
    /// the bed's.
    ///
    /// # Errors
    /// It does not come to its end in 300 s, or checks nothing.
    pub fn script(&self, bed: &Bed, name: &str, arguments: &[(&str, &str)]) -> Result<bool> {
        let script = self.begin_script(name, arguments)?;
        self.end_script(bed, script, "")
    }

    /// Begins a script; [`Vm::end_script`] records its checks.
    ///
    /// # Errors
    /// The system's.
    pub fn begin_script(&self, name: &str, arguments: &[(&str, &str)]) -> Result<Script> {
        let from = self.line.borrow().said().len();
        let mut words = String::new();
        for (name, value) in arguments {
            words += &format!("export arg_{name}='{value}'\n");
        }
        words += &format!("cd /; sh /scripts/{name}.sh");
        Ok(Script { name: name.to_string(), order: self.begin(&words)?, from })
    }

    /// Whether a script has come to its end.
    pub fn is_script_over(&self, script: &Script) -> bool {
        self.is_over(&script.order)
    }

    /// Waits for a script's end and records its checks, with `prefix` before their names: whether all passed.
    ///
    /// # Errors
    /// As [`Vm::script`].
    pub fn end_script(&self, bed: &Bed, script: Script, prefix: &str) -> Result<bool> {
        let ended = self.end(script.order, END);
        let (mut all, count) = line::record(&self.line.borrow().said()[script.from..], bed, prefix);
        let (status, said) = ended.with_context(|| format!("the script {}", script.name))?;
        if status != 0 {
            all = false;
            let name = format!("{prefix}{}-script", script.name);
            bed.failed(&name, format!("it ended with {status}: {}", short(&said)));
        }
        ensure!(count > 0, "the script {} checked nothing: {}", script.name, short(&said));
        Ok(all)
    }

    /// Gives a command to QEMU's monitor.
    ///
    /// # Errors
    /// As [`Qmp::ask`].
    pub fn qmp(&self, command: &str, arguments: &Value) -> Result<Value> {
        self.monitor()?.ask(command, arguments)
    }

    /// Its monitor, connected.
    ///
    /// # Errors
    /// QEMU has none in 90 s.
    pub fn monitor(&self) -> Result<RefMut<'_, Qmp>> {
        if self.monitor.borrow().is_none() {
            let path = self.monitor_path();
            let connect = || Ok(path.exists().then(|| Qmp::connect(&path)).and_then(Result::ok));
            let found = self.until("monitor", MONITOR, connect)?;
            *self.monitor.borrow_mut() = Some(found);
        }
        RefMut::filter_map(self.monitor.borrow_mut(), Option::as_mut)
            .map_err(|_| anyhow::anyhow!("QEMU's monitor is gone"))
    }

    /// Lets the monitor go, for somebody else's connection; it is connected again when it is needed.
    pub fn let_monitor_go(&self) {
        *self.monitor.borrow_mut() = None;
    }

    /// Whether QEMU runs.
    pub fn is_alive(&self) -> bool {
        matches!(self.process.borrow_mut().try_wait(), Ok(None))
    }

    /// Ends a guest that takes orders: it switches itself off.
    ///
    /// # Errors
    /// It does not, or its kernel has complained.
    pub fn off(self) -> Result<()> {
        self.line.borrow_mut().send("0 end")?;
        self.await_off()?;
        self.no_complaint()
    }

    /// As [`Vm::off`], where the kernel may complain.
    ///
    /// # Errors
    /// It does not end.
    pub fn off_complaining(self) -> Result<()> {
        self.line.borrow_mut().send("0 end")?;
        self.await_off()
    }

    /// Waits until a guest that runs a script by itself is off, and records the script's checks.
    ///
    /// # Errors
    /// As [`Vm::off`], or the script did not come to its end.
    pub fn off_by_itself(self, bed: &Bed, prefix: &str) -> Result<()> {
        let ended = self.await_off();
        line::record(&self.line.borrow().said(), bed, prefix);
        ended?;
        self.no_complaint()
    }

    /// As [`Vm::off_by_itself`], of a kernel that another one has started: the first one may have complained.
    ///
    /// # Errors
    /// It does not end in order.
    pub fn off_after_another(self, bed: &Bed) -> Result<()> {
        let ended = self.await_off();
        line::record(&self.line.borrow().said(), bed, "");
        ended
    }

    fn await_off(&self) -> Result<()> {
        // Firmware comes before its kernel.
        let within = if self.boot.is_by_firmware() { END * 2 } else { END };
        let status = self.await_exit(within)?;
        ensure!(
            status.success(),
            "QEMU of guest {} ended with {status}: {}",
            self.name(),
            self.last_words()
        );
        let ended = self.line.borrow().said().iter().any(|line| line == "END");
        ensure!(
            ended,
            "the script of guest {} did not come to its end: {}",
            self.name(),
            self.last_words()
        );
        Ok(())
    }

    fn await_exit(&self, within: Duration) -> Result<ExitStatus> {
        let start = now_ns();
        loop {
            if let Some(status) = self.process.borrow_mut().try_wait()? {
                return Ok(status);
            }
            if u128::from(now_ns() - start) > within.as_nanos() {
                let seconds = within.as_secs();
                bail!("guest {} still runs after {seconds} s: {}", self.name(), self.examined());
            }
            pause(LOOK);
        }
    }

    /// Looks whether its kernel has complained.
    ///
    /// # Errors
    /// It has: of an I/O error, a bug, or a wait of two minutes.
    pub fn no_complaint(&self) -> Result<()> {
        let console = self.line.borrow().console();
        match line::complaint(&console) {
            Some(said) => bail!("the kernel of guest {} said: {said}", self.name()),
            None => Ok(()),
        }
    }

    /// Ends QEMU at once.
    pub fn kill(&self) {
        let mut process = self.process.borrow_mut();
        let _ = process.kill();
        let _ = process.wait();
    }

    /// What its scripts and orders have said so far, by lines.
    pub fn results(&self) -> Vec<String> {
        self.line.borrow().said()
    }

    fn file(&self, what: &str) -> PathBuf {
        self.folder.join(format!("{}.{what}", self.boot.name))
    }

    fn line(&self) -> Ref<'_, Line> {
        self.line.borrow()
    }
}

/// A script that a guest runs.
#[derive(Debug)]
pub struct Script {
    name: String,
    order: Order,
    /// How many lines the guest had said before it.
    from: usize,
}

impl Place for Vm {
    fn name(&self) -> &str {
        &self.boot.name
    }

    fn does(&self, command: &str) -> Result<(i32, String)> {
        let order = self.begin(&format!("cd /tmp; {command}"))?;
        self.end(order, ORDER)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// QEMU dies with the thread that starts it.
fn launch(folder: &Path, boot: &Boot) -> Result<Child> {
    let log = std::fs::File::create(folder.join(format!("{}.qemu", boot.name)))?;
    let _ = std::fs::remove_file(folder.join(format!("{}.qmp", boot.name)));
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .args(&boot.program)
        .args(boot.arguments(folder))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("starting QEMU by setpriv (Debian: apt-get install util-linux qemu-system-x86)")
}

/// The end of what a command said, in one line.
pub fn short(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(4)..].join(" ")
}
