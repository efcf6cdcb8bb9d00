//! A front-end that sends anything (`fuzz::session`).
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::session::run(input));
