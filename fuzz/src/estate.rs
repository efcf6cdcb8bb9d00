//! A predecessor that hands anything over: packets of any bytes, with any number of descriptors.
//!
//! What must hold: nothing panics, and what is taken stays within its bounds. A line of the input is a
//! packet, after a digit, which is how many descriptors come with it.

/// Takes the packets of one input.
pub fn run(input: &[u8]) {
    let lines = input.split(|byte| *byte == b'\n');
    let packets = lines.filter_map(|line| {
        let (digit, bytes) = line.split_first()?;
        Some((bytes, usize::from(digit.wrapping_sub(b'0')) % 80))
    });
    manager::upgrade::take_packets(packets);
}
