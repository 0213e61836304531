//! Numbers that look random and are the same for the same seed, on every machine.

/// `SplitMix64`, after Steele, Lea and Flood 2014.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// A sequence of its own for each `stream` of a seed: what one part of a run draws does not shift what another gets.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 to below `n`; 0 for none.
    #[expect(clippy::cast_possible_truncation, reason = "below n")]
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % (n.max(1) as u64)) as usize
    }

    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// One of several; the first of none is a mistake of the caller.
    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// The logarithm is normally distributed with this deviation; the mean is 1.
    pub(super) fn lognormal(&mut self, sigma: f64) -> f64 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        (normal * sigma - sigma * sigma / 2.0).exp()
    }
}
