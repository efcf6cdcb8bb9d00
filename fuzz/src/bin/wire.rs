//! Any bytes as records, handshakes, and what a peer says in good frames (`fuzz::wire`).
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::wire::run(input));
