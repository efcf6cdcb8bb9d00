//! Rows A29 to A32, C10 and C13 of `docs/security.md`, and what else a guest can do
//! without end: the neighbour on the same sidecore must have nine tenths of what it has beside a
//! guest that is as busy with what is right.
//!
//! What each row does, and what that good guest does, is in `tests::misdeeds::storms`.

tests::misdeeds!(storms tests);
