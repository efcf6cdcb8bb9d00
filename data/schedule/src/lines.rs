//! First-in first-out lines of queues, linked through one table: each step is a few stores, whatever
//! the length. A queue stands in at most one line of a table.
//!
//! Not which line a queue belongs in (`schedule`).

/// No queue, and no line.
const NONE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    before: u16,
    after: u16,
    /// The line it stands in, or `NONE`.
    line: u16,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u16,
    last: u16,
}

/// `LINES` lines over the queues `0..queues_max`.
#[derive(Debug)]
pub(crate) struct Lines<const LINES: usize> {
    nodes: Vec<Node>,
    ends: [Ends; LINES],
}

impl<const LINES: usize> Lines<LINES> {
    /// Empty lines. The last number of the type is not a queue.
    pub(crate) fn new(queues_max: u16) -> Lines<LINES> {
        let nodes = vec![Node { before: NONE, after: NONE, line: NONE }; usize::from(queues_max)];
        Lines { nodes, ends: [Ends { first: NONE, last: NONE }; LINES] }
    }

    /// Who is first in `line`.
    #[inline]
    pub(crate) fn first(&self, line: usize) -> Option<u16> {
        let first = self.ends.get(line)?.first;
        (first != NONE).then_some(first)
    }

    /// Who stands behind `queue`, in whatever line that is.
    #[inline]
    pub(crate) fn after(&self, queue: u16) -> Option<u16> {
        let after = self.nodes.get(usize::from(queue))?.after;
        (after != NONE).then_some(after)
    }

    /// Puts `queue` at the end of `line`, out of any line it stood in.
    #[inline]
    pub(crate) fn move_to_end(&mut self, line: usize, queue: u16) {
        let alone_last = self.ends.get(line).is_none_or(|ends| ends.last == queue);
        if alone_last {
            return;
        }
        self.leave(queue);
        let (Some(ends), Some(node)) =
            (self.ends.get_mut(line), self.nodes.get_mut(usize::from(queue)))
        else {
            return;
        };
        let before = ends.last;
        *node = Node { before, after: NONE, line: line as u16 };
        ends.last = queue;
        match self.nodes.get_mut(usize::from(before)) {
            Some(node) => node.after = queue,
            None => ends.first = queue,
        }
    }

    /// Takes `queue` out of the line it stands in, if it stands in one.
    #[inline]
    pub(crate) fn leave(&mut self, queue: u16) {
        let Some(node) = self.nodes.get_mut(usize::from(queue)) else {
            return;
        };
        let Node { before, after, line } = *node;
        let Some(ends) = self.ends.get_mut(usize::from(line)) else {
            return;
        };
        *node = Node { before: NONE, after: NONE, line: NONE };
        match self.nodes.get_mut(usize::from(before)) {
            Some(node) => node.after = after,
            None => ends.first = after,
        }
        match self.nodes.get_mut(usize::from(after)) {
            Some(node) => node.before = before,
            None => ends.last = before,
        }
    }

    /// The queues of `line`, first to last.
    #[cfg(test)]
    pub(crate) fn in_order(&self, line: usize) -> Vec<u16> {
        let mut order = Vec::new();
        let mut next = self.first(line);
        while let Some(queue) = next {
            order.push(queue);
            assert!(order.len() <= self.nodes.len(), "line {line} is a circle: {order:?}");
            let after = self.nodes[usize::from(queue)].after;
            next = (after != NONE).then_some(after);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::Lines;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        ToEnd(usize, u16),
        Leave(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Line 2 and the queues from 8 do not exist.
        prop_oneof![
            (0..3usize, 0..9u16).prop_map(|(line, queue)| Step::ToEnd(line, queue)),
            (0..9u16).prop_map(Step::Leave),
        ]
    }

    proptest! {
        #[test]
        fn lines_are_queues(steps in prop::collection::vec(step(), 0..200)) {
            let mut lines = Lines::<2>::new(8);
            let mut model = [VecDeque::new(), VecDeque::new()];
            for step in steps {
                match step {
                    Step::Leave(queue) => {
                        lines.leave(queue);
                        model.iter_mut().for_each(|line| line.retain(|other| *other != queue));
                    }
                    Step::ToEnd(line, queue) => {
                        lines.move_to_end(line, queue);
                        if line < 2 && queue < 8 {
                            model.iter_mut().for_each(|line| line.retain(|other| *other != queue));
                            model[line].push_back(queue);
                        }
                    }
                }
                for (line, model) in model.iter().enumerate() {
                    prop_assert_eq!(lines.in_order(line), Vec::from(model.clone()));
                    prop_assert_eq!(lines.first(line), model.front().copied());
                    for (at, queue) in model.iter().enumerate() {
                        prop_assert_eq!(lines.after(*queue), model.get(at + 1).copied());
                    }
                }
            }
        }
    }
}
