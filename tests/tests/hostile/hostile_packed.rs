//! Rows B1 to B9 of `docs/security.md`: what a hostile guest writes in a packed ring,
//! over a real session, beside a neighbour on the same sidecore.
//!
//! What each row does is in `tests::misdeeds::packed`.

tests::misdeeds!(packed tests);
