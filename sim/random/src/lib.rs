//! Numbers from a seed, for both simulations: `SplitMix64` (Steele, Lea, Flood 2014), whole numbers throughout.
//!
//! Not a dependency, because a seed that is kept as a case, and the figures that are checked in, must not
//! change with a version of one; and no `f64::ln`, which is the platform's and may differ in its last bit.
#![forbid(unsafe_code)]

/// One stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Streams of one seed differ from each other: `stream` is a guest's number, or a use.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut mixed = Random(seed ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        Random(mixed.next())
    }

    /// The next one, of all 64 bits.
    #[expect(clippy::should_implement_trait, reason = "the stream has no end, and is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `0..bound`; 0 when that is empty.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True once in so many times on average; never for 0.
    pub fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// One of them; they are not none.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// `mean` give or take a tenth, uniform: enough that guests do not march in step.
    pub fn about(&mut self, mean: u64) -> u64 {
        let tenth = mean / 10;
        mean - tenth + self.below(2 * tenth + 1)
    }

    /// Exponential with this mean: gaps of a Poisson process.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        ((u128::from(mean) * u128::from(minus_ln(self.next()))) >> 32) as u64
    }
}

/// How often a test does what it does: `usual` times, or `all` times with `./x test --all`. What was found once has a
/// test of its own, so a run that many wait for looks less far.
pub fn often(usual: u32, all: u32) -> u32 {
    let is_all = std::env::var_os("TEST_ALL").is_some_and(|value| !value.is_empty());
    if is_all { all } else { usual }
}

/// `-ln(x / 2^64)` with 32 bits of fraction, by squaring: one bit of the binary logarithm a turn.
fn minus_ln(x: u64) -> u64 {
    let x = x.max(1);
    let zeros = x.leading_zeros();
    // In 1..2, 63 bits of fraction.
    let mut mantissa = u128::from(x << zeros);
    let mut log2: u64 = 0;
    for _ in 0..32 {
        mantissa = (mantissa * mantissa) >> 63;
        log2 <<= 1;
        if mantissa >> 64 != 0 {
            log2 |= 1;
            mantissa >>= 1;
        }
    }
    // log2(x / 2^64) is -(zeros + 1) + log2(mantissa).
    let minus_log2 = ((u64::from(zeros) + 1) << 32) - log2;
    // ln 2 with 32 bits of fraction.
    ((u128::from(minus_log2) * 2_977_044_472) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_those_of_the_library() {
        let mut random = Random::new(1, 0);
        for _ in 0..10_000 {
            let x = random.next();
            let expected = -(x as f64 / (u64::MAX as f64)).ln();
            let got = minus_ln(x) as f64 / (1u64 << 32) as f64;
            assert!((got - expected).abs() < 1e-8, "{x}: {got}, not {expected}");
        }
    }

    #[test]
    fn means_are_kept() {
        let mut random = Random::new(7, 3);
        let sum = |draw: &mut dyn FnMut() -> u64| (0..100_000).map(|_| draw()).sum::<u64>();
        let exponential = sum(&mut || random.exponential(1000)) / 100_000;
        assert!((990..=1010).contains(&exponential), "{exponential}");
        let about = sum(&mut || random.about(1000)) / 100_000;
        assert!((998..=1002).contains(&about), "{about}");
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn streams_differ_and_repeat() {
        let first = |seed, stream| Random::new(seed, stream).next();
        assert_eq!(first(1, 2), first(1, 2));
        assert_ne!(first(1, 2), first(1, 3));
        assert_ne!(first(1, 2), first(2, 2));
    }
}
