//! Answers that are given later, or not before they are released.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Result;
use testing::clock::now_ns;

/// Gives an answer to the kernel.
pub(super) type Answer = Box<dyn FnOnce() + Send>;

enum Word {
    At(u64, Answer),
    Release,
}

/// A thread that holds answers back.
#[derive(Debug)]
pub(super) struct Later {
    words: Sender<Word>,
}

impl Later {
    pub(super) fn start() -> Result<Later> {
        let (words, inbox) = channel();
        // It ends when the disk is gone and drops its end of the channel.
        std::thread::Builder::new().name("fuse-later".into()).spawn(move || run(&inbox))?;
        Ok(Later { words })
    }

    /// Gives the answer after `wait_ns`; `u64::MAX` is never.
    pub(super) fn answer(&self, wait_ns: u64, answer: Answer) {
        if wait_ns == 0 {
            return answer();
        }
        let due_ns = now_ns().saturating_add(wait_ns);
        if let Err(unsent) = self.words.send(Word::At(due_ns, answer))
            && let Word::At(_, answer) = unsent.0
        {
            answer();
        }
    }

    /// Gives all that are held, now.
    pub(super) fn release(&self) {
        // Fails only when the thread is gone, and with it what it held.
        let _ = self.words.send(Word::Release);
    }
}

fn run(inbox: &Receiver<Word>) {
    let mut held: Vec<(u64, Answer)> = Vec::new();
    loop {
        let next_ns = held.iter().map(|(due_ns, _)| *due_ns).min().unwrap_or(u64::MAX);
        let wait = Duration::from_nanos(next_ns.saturating_sub(now_ns()).min(3_600_000_000_000));
        match inbox.recv_timeout(wait) {
            Ok(Word::At(due_ns, answer)) => held.push((due_ns, answer)),
            Ok(Word::Release) => held.drain(..).for_each(|(_, answer)| answer()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = now_ns();
        let due: Vec<_> = held.extract_if(.., |(due_ns, _)| *due_ns <= now).collect();
        due.into_iter().for_each(|(_, answer)| answer());
    }
}
