//! A daemon that hands anything over (`fuzz::estate`).
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::estate::run(input));
