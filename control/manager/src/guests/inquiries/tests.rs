//! What is asked of VMMs, and what becomes of whoever answers, does not, or is no VMM.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;
use crate::rooms::Rooms;
use crate::trial::Trial;

const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n";
const DONE: &str = "{\"return\": {}}\n";
const VCPUS: &str = "{\"return\": [{\"cpu-index\": 0, \"thread-id\": 70}, {\"cpu-index\": 1, \"thread-id\": 71}]}\n";

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The text of a NIC whose VMM is asked at that socket.
fn nic(id: &str, qmp: &str) -> String {
    format!("[[nic]]\nid = {id:?}\nswitch = \"s\"\nqmp = \"{{}}/run/{qmp}\"\n")
}

fn around(rooms: &mut Rooms) -> Around<'_> {
    let Rooms { turn, devices, poll, bounds, .. } = rooms;
    Around { turn, devices, poll, bounds }
}

/// A daemon with such NICs, and who asks for them.
fn asked(nics: &[(&str, &str)]) -> (Trial, Inquiries) {
    let text: String = nics.iter().map(|(id, qmp)| nic(id, qmp)).collect();
    (Trial::of(&format!("[[switch]]\nid = \"s\"\n{text}")), Inquiries::default())
}

fn number(trial: &mut Trial, id: &str) -> u32 {
    trial.rooms().devices.number_of(id).expect("a device")
}

/// Who has been told what by now.
fn told(inquiries: &mut Inquiries) -> Vec<(u32, Result<Vec<u32>, String>)> {
    let tids = |said: &Said| match said {
        Ok(vcpus) => Ok(vcpus.iter().map(|vcpu| vcpu.tid).collect()),
        Err(why) => Err(why.to_string()),
    };
    std::iter::from_fn(|| inquiries.take_said())
        .map(|(device, said)| (device, tids(&said.1)))
        .collect()
}

/// Asks for a NIC, and gives the VMM's end once it is connected.
fn begun(trial: &mut Trial, inquiries: &mut Inquiries, listener: &UnixListener) -> UnixStream {
    let number = number(trial, "a");
    inquiries.ask(number);
    inquiries.begin(&around(trial.rooms()));
    let (vmm, _) = listener.accept().expect("it has connected");
    vmm.set_nonblocking(true).expect("set");
    vmm
}

/// What control has heard of the only dialogue.
fn hear(trial: &mut Trial, inquiries: &mut Inquiries) {
    let id = *inquiries.open.keys().next().expect("a dialogue");
    inquiries.hear(id, &mut around(trial.rooms()));
}

#[test]
fn a_vmm_tells_its_vcpus_to_all_that_name_its_socket_in_one_dialogue() {
    let (mut trial, mut inquiries) = asked(&[("a", "q"), ("b", "q")]);
    let listener = UnixListener::bind(trial.path("run/q")).expect("a socket");
    let numbers = [number(&mut trial, "a"), number(&mut trial, "b")];
    // Twice is once.
    numbers.iter().chain(&numbers).for_each(|number| inquiries.ask(*number));
    assert_eq!(inquiries.due_at(trial.rooms().turn.now()), Some(trial.rooms().turn.now()));
    inquiries.begin(&around(trial.rooms()));
    numbers.iter().for_each(|number| inquiries.ask(*number));
    assert_eq!((inquiries.open.len(), inquiries.queue.len()), (1, 0));
    let (mut vmm, _) = listener.accept().expect("it has connected");
    // In pieces, and an event between.
    let (first, rest) = GREETING.split_at(9);
    for (say, expected) in [
        (first, ""),
        (rest, "{\"execute\":\"qmp_capabilities\"}\n"),
        ("{\"event\": \"RESUME\", \"timestamp\": {}}\n", ""),
        (DONE, "{\"execute\":\"query-cpus-fast\"}\n"),
        (VCPUS, ""),
    ] {
        vmm.write_all(say.as_bytes()).expect("said");
        hear(&mut trial, &mut inquiries);
        let mut heard = vec![0; expected.len()];
        vmm.read_exact(&mut heard).expect("it is told");
        assert_eq!(String::from_utf8_lossy(&heard), expected);
    }
    assert_eq!(told(&mut inquiries), numbers.map(|number| (number, Ok(vec![70, 71]))));
    assert_eq!(vmm.read(&mut [0; 1]).ok(), Some(0), "it is hung up on: another may want to ask");
    assert_eq!((inquiries.open.len(), inquiries.due_at(trial.rooms().turn.now())), (0, None));
    // What comes of it then is late.
    inquiries.hear(0, &mut around(trial.rooms()));
}

#[test]
fn whoever_is_no_vmm_is_told_of_by_name() {
    let (mut trial, mut inquiries) = asked(&[("a", "q")]);
    let device = number(&mut trial, "a");
    let mut ask = |trial: &mut Trial| {
        inquiries.ask(device);
        inquiries.begin(&around(trial.rooms()));
        let mut all = told(&mut inquiries);
        assert_eq!(all.len(), 1);
        all.remove(0).1.expect_err("nothing was said")
    };
    assert!(ask(&mut trial).starts_with("there is no such socket: start QEMU with `-qmp unix:"));
    std::fs::write(trial.path("run/q"), "").expect("a file");
    assert!(ask(&mut trial).ends_with("; name the socket itself"));
    std::fs::remove_file(trial.path("run/q")).expect("removed");
    drop(UnixListener::bind(trial.path("run/q")).expect("a socket"));
    assert!(ask(&mut trial).starts_with("nobody listens there: "));
}

#[test]
fn a_vmm_that_is_silent_goes_or_lies_is_left() {
    let says = |text: &'static str| {
        move |vmm: UnixStream| {
            (&vmm).write_all(text.as_bytes()).expect("said");
            Some(vmm)
        }
    };
    type Vmm = Box<dyn Fn(UnixStream) -> Option<UnixStream>>;
    let cases: [(Vmm, &str); 6] = [
        (Box::new(|_| None), "it closes without an answer"),
        (Box::new(says("HTTP/1.1 400\n")), "what answers there is not QMP"),
        (
            Box::new(says(
                "{\"QMP\": {}}\n{\"return\": 7}\n{\"error\": {\"desc\": \"no\\u0007\"}}\n",
            )),
            "it ",
        ),
        (Box::new(|vmm| Some(lends(vmm))), "it sends descriptors"),
        (Box::new(says("{\"QMP\": {}}\n{\"return\": {}}\n{\"return\": []}\n")), "it names no vCPU"),
        (
            Box::new(says(
                "{\"QMP\": {}}\n{\"return\": {}}\n{\"return\": [{\"cpu-index\": 0, \"thread-id\": -1}]}\n",
            )),
            "it names a vCPU or a thread by a number that none has",
        ),
    ];
    for (vmm, why) in cases {
        let (mut trial, mut inquiries) = asked(&[("a", "q")]);
        let listener = UnixListener::bind(trial.path("run/q")).expect("a socket");
        let connected = begun(&mut trial, &mut inquiries, &listener);
        let _vmm = vmm(connected);
        hear(&mut trial, &mut inquiries);
        let all = told(&mut inquiries);
        let said = all[0].1.clone().expect_err("nothing was said");
        assert!(said.starts_with(why), "{said} and not {why}");
        assert!(inquiries.open.is_empty());
    }
}

/// Sends a descriptor beside a greeting.
fn lends(vmm: UnixStream) -> UnixStream {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [vmm.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = std::io::IoSlice::new(GREETING.as_bytes());
    sendmsg(&vmm, &[bytes], &mut control, SendFlags::NOSIGNAL).expect("sent");
    vmm
}

#[test]
fn a_silent_one_is_waited_for_half_a_second_in_all() {
    let (mut trial, mut inquiries) = asked(&[("a", "q")]);
    let listener = UnixListener::bind(trial.path("run/q")).expect("a socket");
    let mut vmm = begun(&mut trial, &mut inquiries, &listener);
    let began = trial.rooms().turn.now();
    assert_eq!(inquiries.due_at(began), Some(began + ms(500)));
    trial.skip(ms(490));
    trial.rooms().turn.tick();
    // A word in between gives it no more time.
    vmm.write_all(GREETING.as_bytes()).expect("said");
    hear(&mut trial, &mut inquiries);
    inquiries.end_late(&mut around(trial.rooms()));
    assert_eq!(told(&mut inquiries), []);
    trial.skip(ms(10));
    trial.rooms().turn.tick();
    inquiries.end_late(&mut around(trial.rooms()));
    let all = told(&mut inquiries);
    let why = all[0].1.clone().expect_err("it is late");
    assert!(why.starts_with("no answer within 500 ms: "), "{why}");
}

#[test]
fn so_many_are_asked_at_a_time_and_the_others_wait_for_their_turn() {
    let nics: Vec<(String, String)> =
        (0..20).map(|at| (format!("d{at}"), format!("q{at}"))).collect();
    let names: Vec<(&str, &str)> =
        nics.iter().map(|(id, qmp)| (id.as_str(), qmp.as_str())).collect();
    let (mut trial, mut inquiries) = asked(&names);
    let mut listeners: Vec<UnixListener> = nics
        .iter()
        .map(|(_, qmp)| UnixListener::bind(trial.path("run").join(qmp)).expect("a socket"))
        .collect();
    for (id, _) in &nics {
        let number = number(&mut trial, id);
        inquiries.ask(number);
    }
    let now = trial.rooms().turn.now();
    for (open, due) in [(8, Some(now)), (16, Some(now + ms(500))), (16, Some(now + ms(500)))] {
        inquiries.begin(&around(trial.rooms()));
        assert_eq!((inquiries.open.len(), inquiries.due_at(now)), (open, due));
    }
    // One that ends makes room for the next; one that has gone meanwhile is not asked for.
    drop(listeners.remove(0).accept().expect("it has connected"));
    let first = *inquiries.open.keys().next().expect("a dialogue");
    inquiries.hear(first, &mut around(trial.rooms()));
    let gone = number(&mut trial, "d16");
    let next = number(&mut trial, "d17");
    drop(trial.rooms().devices.remove(gone));
    inquiries.begin(&around(trial.rooms()));
    let asked: Vec<&[u32]> = inquiries.open.values().map(|inquiry| &inquiry.devices[..]).collect();
    assert_eq!(asked.last(), Some(&&[next][..]));
    assert_eq!(asked.len(), 16);
}
