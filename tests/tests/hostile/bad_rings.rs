//! Rows E11, E12, E22, E23, E29, E30 and E36 to E38 of `docs/security.md`: front-ends
//! that change what runs, ask for it without end, or speak of what this device is not. Attack 6 of
//! `docs/decisions/0004-known-attacks.md`.
//!
//! What each row does is in `tests::misdeeds::rings`; what is sent before anything runs in
//! `bad_front_end`.

tests::misdeeds!(rings tests);
