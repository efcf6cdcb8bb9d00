//! Rows E15, E19 and E20 of `docs/security.md`: memory that is announced anew, moved, taken
//! back or much too large while the device runs. Attack 11 of
//! `docs/decisions/0004-known-attacks.md`.
//!
//! What each row does is in `tests::misdeeds::memory`.

tests::misdeeds!(memory tests);
