//! Rows A1 to A28, A33 and A34 of `docs/security.md`: what a hostile guest writes in a
//! split ring, over a real session, beside a neighbour on the same sidecore.
//!
//! What each row does is in `tests::misdeeds::split`. The same rows are unit tests of `virtqueue`; here
//! the whole daemon is asked. Storms, which last, are in `hostile_storm`; packed rings in
//! `hostile_packed`; requests in `hostile_blk`.

tests::misdeeds!(split tests);
