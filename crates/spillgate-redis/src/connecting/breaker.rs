//! The circuit breaker's counts: decides when a server has failed too many calls. Pure, without a clock.

/// The results of the last calls to one server.
#[derive(Debug, Default)]
pub struct Breaker {
    in_a_row: u32,
    /// The last 64 calls as bits, the newest lowest; a set bit is a failure.
    failed: u64,
    noted: u32,
}

impl Breaker {
    /// Records a result, and returns whether the breaker must open.
    pub fn note(&mut self, went_well: bool) -> bool {
        self.failed = self.failed << 1 | u64::from(!went_well);
        self.noted = (self.noted + 1).min(u64::BITS);
        self.in_a_row = if went_well { 0 } else { self.in_a_row + 1 };
        // The window is the calls since the last reset, at most 64. Only a failure can open the breaker.
        let many = self.noted >= JUDGED_FROM && 2 * self.failed.count_ones() >= self.noted;
        !went_well && (self.in_a_row >= IN_A_ROW || many)
    }

    /// Forgets all results, when the server answers again.
    pub fn reset(&mut self) {
        *self = Breaker::default();
    }
}

/// A lost packet fails one call. A restart fails the calls in flight, and attempts to connect, so it may open the
/// breaker, which closes as soon as the server is back.
const IN_A_ROW: u32 = 3;
/// The fewest calls of which half must fail.
const JUDGED_FROM: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_at_the_third_failure_in_a_row() {
        let mut breaker = Breaker::default();
        let noted = [false, false, true, false, false, false].map(|well| breaker.note(well));
        assert_eq!(noted, [false, false, false, false, false, true]);
    }

    #[test]
    fn opens_when_half_of_the_last_calls_failed() {
        let mut breaker = Breaker::default();
        let opened = (0..100).position(|call| breaker.note(call % 2 == 0));
        assert_eq!(opened, Some(19));
    }

    #[test]
    fn one_failure_in_three_is_no_outage() {
        let mut breaker = Breaker::default();
        assert!((0..1_000).all(|call| !breaker.note(call % 3 > 0)));
    }

    #[test]
    fn a_reply_after_an_outage_resets_the_breaker() {
        let mut breaker = Breaker::default();
        (0..64).for_each(|_| {
            breaker.note(false);
        });
        breaker.reset();
        assert!(!breaker.note(false));
    }
}
