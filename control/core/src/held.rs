//! What is to be said to a sidecore once it is known which: at most one command of a kind for each queue.

/// Commands that wait, each for one `K`.
#[derive(Debug)]
pub(crate) struct Held<K, C>(Vec<(K, C)>);

impl<K, C> Default for Held<K, C> {
    fn default() -> Held<K, C> {
        Held(Vec::new())
    }
}

impl<K: PartialEq, C> Held<K, C> {
    /// Keeps one. It takes the place of one of its kind that waits, so that front-ends cannot use up our
    /// descriptors.
    pub(crate) fn keep(&mut self, of: K, command: C) {
        let kind = std::mem::discriminant(&command);
        self.0.retain(|(other, held)| *other != of || std::mem::discriminant(held) != kind);
        self.0.push((of, command));
    }

    /// All of them, in the order in which they are to be said.
    pub(crate) fn into_vec(self) -> Vec<(K, C)> {
        self.0
    }
}
