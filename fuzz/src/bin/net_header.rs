//! Frames with any header and any bytes (`fuzz::net`).
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::net::run(input));
