//! Who is next: small numbers in a round, each in it at most once.
//!
//! Whoever has something to say or to do is put in; what is not in it costs nothing. Called by `client` and `iohost`.

use std::collections::VecDeque;

use crate::session::Out;

/// The round.
#[derive(Debug, Default)]
pub(crate) struct Round {
    queue: VecDeque<usize>,
    is_in: Vec<bool>,
}

impl Round {
    /// Takes the memory for all numbers below `count`: putting them in allocates nothing later.
    pub(crate) fn fit(&mut self, count: usize) {
        if self.is_in.len() < count {
            self.is_in.resize(count, false);
            self.queue.reserve(count - self.queue.len());
        }
    }

    /// Puts it in, at the end, if it is not in already.
    pub(crate) fn add(&mut self, one: usize) {
        self.fit(one + 1);
        if !std::mem::replace(&mut self.is_in[one], true) {
            self.queue.push_back(one);
        }
    }

    pub(crate) fn first(&self) -> Option<usize> {
        self.queue.front().copied()
    }

    /// The first one is the last one from now on.
    pub(crate) fn rotate(&mut self) {
        if let Some(one) = self.queue.pop_front() {
            self.queue.push_back(one);
        }
    }

    pub(crate) fn remove_first(&mut self) {
        if let Some(one) = self.queue.pop_front() {
            self.is_in[one] = false;
        }
    }

    /// Lets each in turn put records into a frame: `fill` says whether it has more. Only who got something in
    /// goes to the end: a frame that was full before its turn came is not its turn.
    pub(crate) fn serve(
        &mut self,
        out: &mut Out<'_>,
        mut fill: impl FnMut(usize, &mut Out<'_>) -> bool,
    ) {
        while let Some(one) = self.first() {
            let before = out.count();
            if !fill(one, out) {
                self.remove_first();
                continue;
            }
            if out.count() > before {
                self.rotate();
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_in_once_and_comes_in_turn() {
        let mut round = Round::default();
        [3, 1, 3, 7, 1].into_iter().for_each(|one| round.add(one));
        round.rotate();
        let mut seen = Vec::new();
        while let Some(one) = round.first() {
            seen.push(one);
            round.remove_first();
        }
        assert_eq!(seen, [1, 7, 3]);
        round.add(3);
        assert_eq!(round.first(), Some(3), "it may come again");
    }
}
