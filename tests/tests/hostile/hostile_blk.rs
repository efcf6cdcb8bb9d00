//! Rows C1 to C9, C11, C12, C14, C15 and C17 of `docs/security.md`: block requests that
//! no driver sends, over a real session, beside a neighbour on the same sidecore.
//!
//! What each row does is in `tests::misdeeds::blk`. Those that last (C10, C13) are in `hostile_storm`;
//! memory that cannot be touched (C16) in `lost_memory`.

tests::misdeeds!(blk tests);
