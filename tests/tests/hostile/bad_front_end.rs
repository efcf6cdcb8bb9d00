//! Front-ends that break the protocol's form or send what no ring, memory or feature can be: each
//! is refused, and its neighbour on the same sidecore notices nothing.
//!
//! The numbers are those of `docs/security.md`, section "Front-ends"; what each row does is in
//! `tests::misdeeds::front_end`. Not here: what a connection does over time (`bad_connection`).

tests::misdeeds!(front_end tests);
