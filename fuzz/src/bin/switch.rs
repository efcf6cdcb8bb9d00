//! Ports, frames and time in any order (`fuzz::bridge`).
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::bridge::run(input));
