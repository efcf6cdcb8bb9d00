//! Whether a port's tap is the one that others may have given addresses and a place in a bridge.
//!
//! Not here: how a tap is lost and opened again (`uplink`).

/// What is shown of a new tap until a reload.
const ANOTHER: &str = "its tap was removed while it was in use, and is a new one: addresses, routes and the place in \
                       a bridge that the former had are gone; give it them again, and then `sidecore reload`";

/// It.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TapIs {
    /// It is, as far as is known.
    #[default]
    AsItWas,
    /// It was removed while it was open.
    Gone,
    /// There is one again, and it is another one.
    Another,
}

impl TapIs {
    /// It was removed while it was open.
    pub(super) fn lose(&mut self) {
        *self = TapIs::Gone;
    }

    /// There is one now. What the log is to say of that, if something.
    pub(super) fn find(&mut self) -> Option<&'static str> {
        if *self == TapIs::Gone {
            *self = TapIs::Another;
        }
        self.problem()
    }

    /// An operator has seen to it.
    pub(super) fn is_seen_to(&mut self) {
        if *self == TapIs::Another {
            *self = TapIs::AsItWas;
        }
    }

    /// What is shown.
    pub(super) fn problem(self) -> Option<&'static str> {
        (self == TapIs::Another).then_some(ANOTHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_that_was_removed_and_made_again_is_told_of_until_a_reload() {
        let mut tap = TapIs::default();
        assert_eq!(tap.find(), None, "the first");
        tap.lose();
        tap.is_seen_to();
        // While there is none, that is what is shown.
        assert_eq!(tap.problem(), None);
        assert!(tap.find().is_some_and(|told| told.contains("`sidecore reload`")));
        assert!(tap.problem().is_some());
        tap.is_seen_to();
        assert_eq!((tap.problem(), tap.find()), (None, None));
    }
}
