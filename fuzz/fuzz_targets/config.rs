//! Texts that an operator or a damaged disk may give (`fuzz::operator`).
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::operator::run(input));
