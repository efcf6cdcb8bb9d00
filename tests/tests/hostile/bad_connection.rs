//! Front-ends that speak in the wrong order, stop speaking, do not listen, or come by the hundred.
//!
//! As in `bad_front_end`, a neighbour on the same sidecore works all the while. What each row does is in
//! `tests::misdeeds::connection`.

tests::misdeeds!(connection tests);
