//! A hostile packed ring (`fuzz::ring`).
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::ring::run(virtqueue::Format::Packed, input));
