//! What operators and guests are promised of switches, NICs and what leads to the host.
//!
//! | file | what |
//! |---|---|
//! | `switches` | made, shown, removed; who was heard where |
//! | `nics` | changed, moved, their cables |
//! | `hosts` | ports that lead to the host, and what becomes of them |

mod hosts;
mod nics;
mod switches;

use std::time::Duration;

use config::SwitchSpec;
use config::api::{Answer, ApiError, Call, ErrorKind, NicView, SwitchView};
use config::spec::NicSpec;

use crate::simulated::{Asked, Heard};
use crate::trial::vmm::Vmm;
use crate::trial::{Trial, refused};

const LAN: &str = "[[switch]]\nid = \"lan\"\n";
const BROADCAST: [u8; 6] = [0xff; 6];

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The text of a NIC of that switch.
fn nic(id: &str) -> String {
    format!("[[nic]]\nid = {id:?}\nswitch = \"lan\"\n")
}

/// A NIC of that switch for the API.
fn nic_spec(id: &str) -> NicSpec {
    NicSpec { switch: Some("lan".to_string()), ..NicSpec::new(id) }
}

fn switch_in(answer: Result<Answer, ApiError>) -> SwitchView {
    match answer {
        Ok(Answer::Switch(switch)) => *switch,
        other => panic!("{other:?} is no switch"),
    }
}

fn nic_in(answer: Result<Answer, ApiError>) -> NicView {
    match answer {
        Ok(Answer::Nic(nic)) => *nic,
        other => panic!("{other:?} is no NIC"),
    }
}

fn show(trial: &mut Trial, id: &str) -> SwitchView {
    switch_in(trial.ask(Call::ShowSwitch { id: id.to_string() }))
}

/// What has been answered by now.
fn answered(asked: &mut Asked) -> Option<Result<Answer, ApiError>> {
    match asked.hear() {
        Heard::Answer(answer) => Some(*answer),
        Heard::Nothing => None,
        Heard::Nobody => panic!("nobody answers"),
    }
}

/// One turn of control, in which no sidecore does anything.
fn turn(trial: &mut Trial) {
    trial.daemon.turn(&mut |count| (0..count).collect());
}

/// A frame of some protocol of its own.
fn frame(to: [u8; 6], from: [u8; 6], fill: u8) -> Vec<u8> {
    [&to[..], &from, &[0x88, 0xb5], &[fill; 50]].concat()
}

/// What one guest sends is what another receives; nothing is, if it does not come within 10 ms.
fn carries(trial: &mut Trial, from: &mut Vmm, to: &mut Vmm, frame: &[u8]) -> Option<Vec<u8>> {
    to.guest.offer(0);
    from.guest.transmit(1, frame);
    trial.pass(ms(10));
    to.guest.frame(0)
}

fn kind<T: std::fmt::Debug>(answer: Result<T, ApiError>) -> ErrorKind {
    refused(answer).0
}
