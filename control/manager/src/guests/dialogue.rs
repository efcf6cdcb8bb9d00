//! What a VMM's QMP says of its vCPU threads: the client's side of one dialogue, bytes in and bytes out.
//!
//! QEMU's docs/interop/qmp-spec, and `query-cpus-fast`. Whoever is at the other end is not trusted: what it sends
//! is bounded in bytes, lines and vCPUs, and nothing of it is shown but some printable characters of a refusal.
//! Not here: the socket, the deadline (`inquiries`), and whether the threads are the guest's
//! ([`vcpu_tracker::vcpus::Process::among`]).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use vcpu_tracker::vcpus::{VCPUS_MAX, Vcpu};

/// All that is read of one dialogue, in bytes: an answer of QEMU has about 200 for each vCPU.
pub(crate) const BYTES_MAX: usize = 256 << 10;
/// Longest line of it, in bytes.
const LINE_BYTES_MAX: usize = 128 << 10;
const _: () = assert!(LINE_BYTES_MAX >= VCPUS_MAX * 256 && LINE_BYTES_MAX <= BYTES_MAX);
/// Most lines of it: three are answers, the others are events.
const LINES_MAX: usize = 64;
/// How much of a refusal is shown, in characters.
const SHOWN_MAX: usize = 80;
/// Dialogues at a time. Each is a descriptor, and 256 KiB at most.
pub(crate) const DIALOGUES_MAX: usize = 16;

const CAPABILITIES: &str = "{\"execute\":\"qmp_capabilities\"}\n";
const QUERY: &str = "{\"execute\":\"query-cpus-fast\"}\n";

/// Why the other end has not said which threads are vCPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QmpError {
    /// What it says first is not QMP's greeting.
    #[error("what answers there is not QMP: name the socket of a `-qmp` option")]
    NotQmp,
    /// It says more than an answer has.
    #[error(
        "it sends more than {BYTES_MAX} bytes, {LINE_BYTES_MAX} in a line, or {LINES_MAX} lines"
    )]
    TooMuch,
    /// A line that is no answer.
    #[error("it sends what is no answer of QMP")]
    NotAnAnswer,
    /// It refuses a command, in its own words.
    #[error("it refuses: {0:?}; QEMU knows `query-cpus-fast` since version 2.12")]
    Refused(String),
    /// A number of a vCPU or a thread that none has.
    #[error("it names a vCPU or a thread by a number that none has")]
    WrongNumber,
    /// No vCPU.
    #[error("it names no vCPU")]
    NoVcpu,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    Capabilities,
    Vcpus,
}

/// One dialogue.
#[derive(Debug)]
pub(crate) struct Dialogue {
    state: State,
    /// What came of a line that has not ended.
    line: Vec<u8>,
    bytes: usize,
    lines: usize,
}

/// A line but the greeting: an event, or an answer.
#[derive(Deserialize)]
struct Line<T> {
    event: Option<IgnoredAny>,
    error: Option<Refusal>,
    #[serde(rename = "return")]
    answer: Option<T>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    desc: String,
}

#[derive(Deserialize)]
struct Greeting {
    #[serde(rename = "QMP")]
    _qmp: Features,
}

/// An object, whatever is in it.
type Features = BTreeMap<String, IgnoredAny>;

/// One vCPU of an answer.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "cpu-index")]
    index: i64,
    #[serde(rename = "thread-id")]
    thread: i64,
}

impl Default for Dialogue {
    fn default() -> Dialogue {
        Dialogue { state: State::Greeting, line: Vec::new(), bytes: 0, lines: 0 }
    }
}

impl Dialogue {
    /// Takes what the other end sent, and puts what it is to be told into `say`. The vCPUs, once they are told: by
    /// their numbers, each once, [`VCPUS_MAX`] at most. It is not to be called again then, or after an error.
    ///
    /// # Errors
    /// [`QmpError`].
    pub(crate) fn hear(
        &mut self,
        sent: &[u8],
        say: &mut Vec<u8>,
    ) -> Result<Option<Vec<Vcpu>>, QmpError> {
        self.bytes = self.bytes.saturating_add(sent.len());
        if self.bytes > BYTES_MAX {
            return Err(QmpError::TooMuch);
        }
        let mut rest = sent;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            let line = self.ended(line)?;
            if let Some(vcpus) = self.heard(&line, say)? {
                return Ok(Some(vcpus));
            }
        }
        self.grow(rest)?;
        Ok(None)
    }

    fn grow(&mut self, part: &[u8]) -> Result<(), QmpError> {
        if self.line.len().saturating_add(part.len()) > LINE_BYTES_MAX {
            return Err(QmpError::TooMuch);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn ended(&mut self, part: &[u8]) -> Result<Vec<u8>, QmpError> {
        self.grow(part)?;
        self.lines = self.lines.saturating_add(1);
        if self.lines > LINES_MAX {
            return Err(QmpError::TooMuch);
        }
        Ok(std::mem::take(&mut self.line))
    }

    fn heard(&mut self, line: &[u8], say: &mut Vec<u8>) -> Result<Option<Vec<Vcpu>>, QmpError> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        match self.state {
            State::Greeting => {
                serde_json::from_slice::<Greeting>(line).map_err(|_| QmpError::NotQmp)?;
                say.extend_from_slice(CAPABILITIES.as_bytes());
                self.state = State::Capabilities;
            }
            State::Capabilities => {
                if answer::<Features>(line)?.is_some() {
                    say.extend_from_slice(QUERY.as_bytes());
                    self.state = State::Vcpus;
                }
            }
            State::Vcpus => return answer::<Vec<Entry>>(line)?.map(vcpus).transpose(),
        }
        Ok(None)
    }
}

/// The answer of a line; nothing if it is an event.
fn answer<T: DeserializeOwned>(line: &[u8]) -> Result<Option<T>, QmpError> {
    // What the parser says of it has parts of it.
    let line: Line<T> = serde_json::from_slice(line).map_err(|_| QmpError::NotAnAnswer)?;
    match (line.error, line.answer, line.event) {
        (Some(refusal), _, _) => Err(QmpError::Refused(shown(&refusal.desc))),
        (None, Some(answer), _) => Ok(Some(answer)),
        (None, None, Some(_)) => Ok(None),
        (None, None, None) => Err(QmpError::NotAnAnswer),
    }
}

/// What a log and a terminal can bear of it.
fn shown(text: &str) -> String {
    text.chars().filter(|c| matches!(c, ' '..='~')).take(SHOWN_MAX).collect()
}

fn vcpus(entries: Vec<Entry>) -> Result<Vec<Vcpu>, QmpError> {
    let vcpu = |entry: Entry| {
        let index = u16::try_from(entry.index).ok()?;
        // Linux has none above 2^22; 0 is nobody's.
        let tid = u32::try_from(entry.thread).ok().filter(|tid| (1..1 << 30).contains(tid))?;
        Some(Vcpu { index, tid })
    };
    let all: Option<Vec<Vcpu>> = entries.into_iter().map(vcpu).collect();
    let mut all = all.ok_or(QmpError::WrongNumber)?;
    all.sort_unstable();
    all.dedup_by_key(|vcpu| vcpu.index);
    all.truncate(VCPUS_MAX);
    if all.is_empty() { Err(QmpError::NoVcpu) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As QEMU 7.2 sends them.
    const GREETING: &str = "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 2, \"major\": 7}, \
        \"package\": \"\"}, \"capabilities\": [\"oob\"]}}\r\n";
    const EMPTY: &str = "{\"return\": {}}\r\n";
    const EVENT: &str = "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"RTC_CHANGE\", \
        \"data\": {\"offset\": 0}}\r\n";
    const VCPUS: &str = "{\"return\": [{\"thread-id\": 25628, \"props\": {\"core-id\": 0}, \"qom-path\": \
        \"/machine/unattached/device[0]\", \"cpu-index\": 0, \"target\": \"x86_64\"}, {\"thread-id\": 25629, \
        \"cpu-index\": 1, \"target\": \"x86_64\"}]}\r\n";

    /// What comes of all that, sent in pieces of so many bytes; and what was said.
    fn dialogue(sent: &str, piece: usize) -> (Result<Option<Vec<Vcpu>>, QmpError>, String) {
        let (mut dialogue, mut say) = (Dialogue::default(), Vec::new());
        for piece in sent.as_bytes().chunks(piece) {
            match dialogue.hear(piece, &mut say) {
                Ok(None) => {}
                ended => return (ended, String::from_utf8(say).expect("text")),
            }
        }
        (Ok(None), String::from_utf8(say).expect("text"))
    }

    fn error(sent: &str) -> QmpError {
        dialogue(sent, 4096).0.expect_err("an error")
    }

    fn entry(index: i64, thread: i64) -> String {
        format!("{{\"cpu-index\":{index},\"thread-id\":{thread}}}")
    }

    /// To the query, that answer.
    fn answered(list: &str) -> String {
        format!("{GREETING}{EMPTY}{{\"return\":{list}}}\n")
    }

    #[test]
    fn vcpus_are_told_however_it_is_cut_and_whatever_happens_between() {
        let expected = vec![Vcpu { index: 0, tid: 25628 }, Vcpu { index: 1, tid: 25629 }];
        let plain = format!("{GREETING}{EMPTY}{VCPUS}");
        let busy = format!("{GREETING}{EVENT}{EMPTY}{EVENT}\r\n{EVENT}{VCPUS}{EVENT}");
        for (sent, piece) in [(&plain, 1), (&plain, 7), (&plain, 4096), (&busy, 1), (&busy, 4096)] {
            let (told, said) = dialogue(sent, piece);
            assert_eq!(told, Ok(Some(expected.clone())), "{sent} by {piece}");
            assert_eq!(said, format!("{CAPABILITIES}{QUERY}"));
        }
    }

    #[test]
    fn who_ends_early_has_told_nothing() {
        let whole = format!("{GREETING}{EMPTY}{VCPUS}");
        for end in 0..whole.len() - 1 {
            assert_eq!(dialogue(&whole[..end], 64).0, Ok(None), "{end}");
        }
        assert_eq!(dialogue("", 1).1, "", "nothing is said before the greeting");
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for text in ["\u{1}\n", "HTTP/1.1 400 Bad Request\r\n", EMPTY, "{\"QMP\":1}\n", "[]\n"] {
            assert_eq!(dialogue(text, 64), (Err(QmpError::NotQmp), String::new()), "{text}");
        }
        for text in
            ["x\n", "{}\n", "[]\n", "{\"return\":[]}\n", "{\"event\":null}\n", "{\"error\":1}\n"]
        {
            assert_eq!(error(&format!("{GREETING}{text}")), QmpError::NotAnAnswer, "{text}");
        }
        for list in ["{}", "1", "[1]", "[{}]", "[{\"cpu-index\":0}]", "[[]]", "null"] {
            assert_eq!(error(&answered(list)), QmpError::NotAnAnswer, "{list}");
        }
        for number in ["\"7\"", "1.5", "null", "true", "1e30", "99999999999999999999"] {
            let list = format!("[{{\"cpu-index\":0,\"thread-id\":{number}}}]");
            assert_eq!(error(&answered(&list)), QmpError::NotAnAnswer, "{number}");
        }
        for (index, thread) in [(0, -1), (0, 0), (0, 1 << 40), (-1, 7), (65_536, 7)] {
            let list = format!("[{}]", entry(index, thread));
            assert_eq!(error(&answered(&list)), QmpError::WrongNumber, "{list}");
        }
        assert_eq!(error(&answered("[]")), QmpError::NoVcpu);
        let deep = "[".repeat(10_000);
        assert_eq!(error(&answered(&deep)), QmpError::NotAnAnswer);
    }

    #[test]
    fn a_refusal_is_shown_without_what_a_terminal_obeys() {
        let refusal = |desc: &str| {
            format!(
                "{GREETING}{{\"error\":{{\"class\":\"CommandNotFound\",\"desc\":\"{desc}\"}}}}\n"
            )
        };
        let shown = "[2Jno such command".to_string();
        assert_eq!(error(&refusal("\\u001b[2Jno such\\n command")), QmpError::Refused(shown));
        let QmpError::Refused(shown) = error(&refusal(&"x".repeat(5000))) else {
            panic!("another error")
        };
        assert_eq!(shown.len(), SHOWN_MAX);
    }

    #[test]
    fn who_sends_without_end_is_left() {
        assert_eq!(error(&"x".repeat(LINE_BYTES_MAX + 1)), QmpError::TooMuch);
        assert_eq!(error(&format!("{GREETING}{}", EVENT.repeat(LINES_MAX))), QmpError::TooMuch);
        assert_eq!(error(&"\n".repeat(LINES_MAX + 1)), QmpError::TooMuch);
        let long = format!("{{\"event\":\"{}\"}}\n", "x".repeat(LINE_BYTES_MAX - 20));
        assert_eq!(error(&format!("{GREETING}{}", long.repeat(3))), QmpError::TooMuch);
    }

    #[test]
    fn of_many_vcpus_those_with_the_lowest_numbers_are_taken_once_each() {
        let entries = (0..300).rev().map(|index| entry(index, 1000 + index));
        let list = entries.chain([entry(5, 9999)]).collect::<Vec<_>>().join(",");
        let told = dialogue(&answered(&format!("[{list}]")), 4096).0.expect("told").expect("vCPUs");
        let expected =
            (0..VCPUS_MAX as u16).map(|index| Vcpu { index, tid: 1000 + u32::from(index) });
        assert_eq!(told, expected.collect::<Vec<_>>());
    }

    proptest! {
        /// Whatever comes: no panic, no more vCPUs than there may be, nothing held beyond a line, and nothing said
        /// but the two commands.
        #[test]
        fn garbage_is_borne(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just(GREETING.as_bytes().to_vec()),
                    Just(EMPTY.as_bytes().to_vec()),
                    Just(EVENT.as_bytes().to_vec()),
                    Just(VCPUS.as_bytes().to_vec()),
                    Just(b"\n".to_vec()),
                    proptest::collection::vec(any::<u8>(), 0..200),
                    (0..VCPUS.len(), any::<u8>()).prop_map(|(at, byte)| {
                        let mut line = VCPUS.as_bytes().to_vec();
                        line[at] = byte;
                        line
                    }),
                ],
                0..20,
            ),
            greets in any::<bool>(),
            piece in 1usize..400,
        ) {
            let start = if greets { format!("{GREETING}{EMPTY}") } else { String::new() };
            let sent = [start.into_bytes(), parts.concat()].concat();
            let (mut dialogue, mut say) = (Dialogue::default(), Vec::new());
            for piece in sent.chunks(piece) {
                match dialogue.hear(piece, &mut say) {
                    Ok(None) => {}
                    Ok(Some(vcpus)) => {
                        prop_assert!((1..=VCPUS_MAX).contains(&vcpus.len()));
                        prop_assert!(vcpus.is_sorted_by(|a, b| a.index < b.index));
                        break;
                    }
                    Err(_) => break,
                }
                prop_assert!(dialogue.line.len() <= LINE_BYTES_MAX);
            }
            let all = format!("{CAPABILITIES}{QUERY}");
            prop_assert!(all.as_bytes().starts_with(&say));
        }
    }
}
