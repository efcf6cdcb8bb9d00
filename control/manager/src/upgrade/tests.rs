//! Both sides of an upgrade, a word at a time, on this thread.

use std::cell::Cell;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use backend::link::{LinkOpenError, LinkShards, LinkSource, LinkWhy};
use config::api::{Answer, ApiError, Call, StageView, StagedBy};
use config::plan::load;
use config::spec::{StageChange, StageKind};
use config::{DiskSpec, Plan, Size};
use cpus::HostCpus;
use schedule::{Clock, Nanos};
use sidecore::Sidecore;

use super::channel::Channel;
use super::launcher::{Launcher, Said, serve_one};
use super::predecessor::Upgrade;
use super::wire::FromHeir;
use crate::options::Options;
use crate::poll::Poll;
use crate::simulated::{
    Around, Asked, Heard, HeirStep, Launchers, Machine, NewProcess, Simulated, Stage, Turned, be_on,
};

/// What happens on a machine within a test, before it is said to go round without end.
const STEPS_MAX: u32 = 20_000;

/// A machine on which no link can be opened.
struct NoLinks;

impl Machine for NoLinks {
    fn open_link(&self, _: &LinkSource, _: usize) -> Result<LinkShards, LinkOpenError> {
        Err(LinkOpenError { at: "rack".to_string(), why: LinkWhy::NoAddress })
    }

    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }

    fn boot(&self) -> u64 {
        1
    }
}

struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() + 100);
        Nanos(self.0.get())
    }
}

/// All but the daemon that has its turn.
#[derive(Default)]
struct Rest {
    cores: Vec<Sidecore>,
    heir: Option<NewProcess>,
    successor: Option<Simulated>,
}

impl Around for Rest {
    fn go_on(&mut self, _: Nanos) {
        let now = crate::simulated::now().map_or(Nanos(0), sidecore::nanos_of);
        for core in &mut self.cores {
            let _ = core.pass(now, &Ticking(Cell::new(now.0)));
        }
        match self.heir.take().map(|heir| heir.step(Rest::default())) {
            Some((HeirStep::Waits(heir) | HeirStep::Goes(heir), cores, _)) => {
                self.heir = Some(heir);
                self.cores.extend(cores);
            }
            Some((HeirStep::Serves(daemon), ..)) => self.successor = Some(*daemon),
            _ => {}
        }
        if let Some(successor) = &mut self.successor {
            successor.turn(&mut |count| (0..count).collect());
        }
        crate::simulated::pass(std::time::Duration::from_millis(1));
    }
}

/// One that goes from one file to the next.
struct Pair {
    daemon: Option<Simulated>,
    rest: Rest,
    launchers: Launchers,
    stage: Stage,
    folder: tempfile::TempDir,
}

fn plan(text: &str, folder: &Path) -> Plan {
    let head = "[daemon]\napi = \"{}/api.sock\"\nrun_dir = \"{}\"\nstate_dir = \"{}\"\n\
                [sidecores]\ncpus = \"0\"\n";
    let text = format!("{head}{text}").replace("{}", &folder.display().to_string());
    let host = HostCpus { online: (0..8).collect(), auto: Vec::new(), auto_count: 1 };
    load(&text, "sidecore.toml", "/etc", &host, None).expect("a plan")
}

fn options(plan: Plan, launcher: Option<super::launcher::Launcher>) -> Options {
    Options {
        version: "0",
        commit: None,
        file: "sidecore.toml".to_string(),
        path: "/etc/sidecore.toml".to_string(),
        load: Box::new(move |_| Ok(plan.clone())),
        ready: Box::new(|| {}),
        stopping: Box::new(|| {}),
        launcher,
        run_state: None,
        heir: None,
        committed: Box::new(|| {}),
        handed_over: Box::new(|_| {}),
    }
}

impl Pair {
    fn of(text: &str) -> Pair {
        let stage = Stage::set(|_| std::time::Duration::ZERO);
        be_on(Some(Rc::new(NoLinks)));
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let (launchers, launcher) = Launchers::begin().expect("launchers");
        let plan = plan(text, folder.path());
        let options = options(plan.clone(), Some(launcher));
        let (daemon, cores) = Simulated::start(plan, options).expect("it starts");
        let rest = Rest { cores, ..Rest::default() };
        Pair { daemon: Some(daemon), rest, launchers, stage, folder }
    }

    fn asks(&self, call: Call) -> Asked {
        self.daemon.as_ref().expect("it serves").ask(call)
    }

    /// A launcher that was asked begins an heir that finds that text in the file.
    fn launch(&mut self, text: &str) {
        let Some(at) = self.launchers.asked() else { return };
        let plan = plan(text, self.folder.path());
        let pid = self.stage.begin_process();
        let heir = &mut self.rest.heir;
        self.launchers.answer(at, &mut |input| {
            let options = options(plan.clone(), None);
            *heir = Some(NewProcess::begin(pid, input, plan.clone(), options));
            Ok(pid)
        });
    }

    /// Has a process take over that finds that text in the file. What the operator is told.
    fn upgrade(&mut self, text: &str) -> Result<Answer, ApiError> {
        let mut asked = self.asks(Call::Upgrade { force: false });
        for _ in 0..STEPS_MAX {
            self.launch(text);
            self.turn();
            self.rest.go_on(Nanos(0));
            match asked.hear() {
                Heard::Answer(answer) => return *answer,
                Heard::Nobody => panic!("nobody answers"),
                Heard::Nothing => {}
            }
        }
        panic!("there is no answer");
    }

    fn turn(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        let all: Vec<usize> = (0..daemon.hear()).collect();
        let (turned, rest) = daemon.turn_amid(&all, std::mem::take(&mut self.rest));
        self.rest = rest;
        if matches!(turned, Turned::Ended) {
            self.daemon.take().into_iter().for_each(Simulated::die);
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.rest.cores.drain(..).for_each(Sidecore::die);
        self.daemon.take().into_iter().for_each(Simulated::die);
        self.rest.successor.take().into_iter().for_each(Simulated::die);
        be_on(None);
    }
}

const DISK: &str = "[[disk]]\nid = \"a\"\nbackend = \"null\"\nsize = \"1M\"\n";
const LINK: &str = "[[link]]\nid = \"rack\"\nrole = \"iohost\"\nsecurity = \"none\"\n\
                    udp = \"127.0.0.1:7447\"\n[[link.client]]\nname = \"c\"\n";

#[test]
fn a_disk_that_another_process_gives_to_a_link_leaves_no_name_of_its_socket() {
    let mut pair = Pair::of(&format!("{DISK}{LINK}disks = []\n"));
    let socket = pair.folder.path().join("a.sock");
    assert!(socket.exists());
    pair.upgrade(&format!("{DISK}{LINK}disks = [\"a\"]\n")).expect("it is replaced");
    let successor = pair.rest.successor.as_ref().expect("another process serves");
    assert_eq!(successor.devices(), 1);
    assert!(!socket.exists(), "nobody listens there");
}

#[test]
fn a_socket_is_the_same_one_in_another_process() {
    let mut pair = Pair::of(DISK);
    let socket = pair.folder.path().join("a.sock");
    let before = std::fs::metadata(&socket).map(|it| std::os::unix::fs::MetadataExt::ino(&it));
    pair.upgrade(DISK).expect("it is replaced");
    let after = std::fs::metadata(&socket).map(|it| std::os::unix::fs::MetadataExt::ino(&it));
    assert_eq!(before.expect("a socket"), after.expect("a socket"));
    assert!(UnixListener::bind(&socket).is_err());
}

#[test]
fn an_heir_has_the_stages_that_a_command_has_added_to_a_disk_of_the_file() {
    let mut pair = Pair::of(DISK);
    let (kind, change) =
        (StageKind::Trace, StageChange { entries: Some(2048), ..StageChange::default() });
    let mut added = pair.asks(Call::SetStage { id: "a".to_string(), kind, change });
    pair.turn();
    assert!(matches!(added.hear(), Heard::Answer(answer) if answer.is_ok()));
    pair.upgrade(DISK).expect("it is replaced");
    let successor = pair.rest.successor.as_ref().expect("another process serves");
    let mut asked = successor.ask(Call::ListStages { id: "a".to_string() });
    (0..100).for_each(|_| pair.rest.go_on(Nanos(0)));
    let Heard::Answer(answer) = asked.hear() else { panic!("no answer") };
    let Ok(Answer::Stages(list)) = *answer else { panic!("{answer:?} is no list") };
    let its = |it: &StageView| (it.kind, it.declared, it.entries, it.recorded);
    let wanted = (StageKind::Trace, StagedBy::Command, Some(2048), Some(0));
    assert_eq!(list.stages.iter().map(its).collect::<Vec<_>>(), [wanted]);
}

/// Its launcher is a moment behind, and only who asked for the upgrade waits for that.
#[test]
fn how_an_heir_ended_is_waited_for_by_its_operator_alone() {
    for (how, told) in [
        (Some("signal: 9"), "the new process has ended (signal: 9)"),
        (None, "the new process has ended"),
    ] {
        let mut pair = Pair::of(DISK);
        let mut asked = pair.asks(Call::Upgrade { force: false });
        pair.turn();
        pair.launch(DISK);
        pair.turn();
        pair.rest.heir.take().expect("it was begun").die();
        let before = pair.stage.now();
        pair.turn();
        let mut others = pair.asks(Call::ListDisks);
        pair.turn();
        assert!(pair.stage.now().since(before) < 10_000_000, "nobody has waited for it");
        assert!(matches!(others.hear(), Heard::Answer(_)));
        assert!(matches!(asked.hear(), Heard::Nothing));
        match how {
            Some(how) => pair.launchers.say_ended(1, how),
            None => pair.stage.pass_until(before.after(1_100_000_000)),
        }
        pair.turn();
        let Heard::Answer(answer) = asked.hear() else { panic!("he waits still") };
        let why = answer.expect_err("it is refused").error;
        assert!(why.ends_with(told), "{why}");
        // And another one may be asked for at once.
        pair.upgrade(DISK).expect("it is replaced");
    }
}

/// Of an heir that ends at once, its launcher may say so before anybody has seen it.
#[test]
fn how_an_heir_ended_is_kept_until_its_end_is_heard() {
    let mut pair = Pair::of(DISK);
    let mut asked = pair.asks(Call::Upgrade { force: false });
    pair.turn();
    pair.launch(DISK);
    pair.launchers.say_ended(1, "exit status: 0");
    pair.turn();
    pair.rest.heir.take().expect("it was begun").die();
    pair.turn();
    let Heard::Answer(answer) = asked.hear() else { panic!("he waits still") };
    let why = answer.expect_err("it is refused").error;
    assert!(why.ends_with("the new process has ended (exit status: 0)"), "{why}");
}

/// Its launcher has asked how it ended before it is heard that it was started, so nobody can watch it any more.
#[test]
fn an_heir_that_ended_before_it_was_heard_of_is_told_of_by_what_it_said() {
    let hello = || FromHeir::Hello { version: "1".to_string(), formats: vec![1] };
    let refused = || FromHeir::Refused { why: "f:3: no field foo".to_string() };
    for (words, told) in [
        (vec![], "the new process has ended"),
        (vec![hello()], "the new process has ended"),
        (vec![refused()], "f:3: no field foo"),
        (vec![hello(), refused()], "f:3: no field foo"),
    ] {
        let (ours, theirs) = Channel::pair().expect("a channel");
        let launcher = Launcher::of([ours]);
        let now = crate::clock::now();
        let mut upgrade = Upgrade::ask(Some(&launcher), now).expect("it is asked");
        let mut start = |_: u64, input| {
            let heir = Channel::of(input);
            words.iter().try_for_each(|word| heir.send(word, &[], Duration::ZERO))?;
            let mut child = std::process::Command::new("true").spawn()?;
            child.wait()?;
            Ok(child.id())
        };
        let served = serve_one(&Channel::of(theirs), Duration::from_secs(60), &mut start);
        assert!(served.expect("it answers"));
        let Said::Started(pid) = launcher.heard(0) else { panic!("it was started") };
        let poll = Poll::new().expect("an epoll set");
        let why = upgrade.start(pid, &poll, now).expect_err("it has ended");
        assert_eq!(why.to_string(), told);
    }
}

/// An image that was made for a disk of which an operator was told is never taken back.
#[test]
fn a_disk_that_is_added_while_an_heir_is_waited_for_keeps_its_image() {
    let mut pair = Pair::of(DISK);
    let path = pair.folder.path().join("b.img");
    // Its launcher does not answer.
    let _waits = pair.asks(Call::Upgrade { force: false });
    pair.turn();
    let spec = DiskSpec { path: Some(path.display().to_string()), ..DiskSpec::new("b") };
    let mut added = pair
        .asks(Call::AddDisk { spec: DiskSpec { size: Some(Size(1 << 20)), ..spec }, force: false });
    let turn = |pair: &mut Pair| {
        pair.turn();
        pair.rest.go_on(Nanos(0));
    };
    let is_added = (0..100).any(|_| {
        turn(&mut pair);
        matches!(added.hear(), Heard::Answer(answer) if answer.is_ok())
    });
    assert!(is_added && path.exists());
    pair.daemon.as_mut().expect("it serves").stop();
    (0..100).for_each(|_| turn(&mut pair));
    assert!(path.exists(), "it is in the plan of the next daemon");
}
