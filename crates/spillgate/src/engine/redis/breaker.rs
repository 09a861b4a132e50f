//! When to stop asking a server: pure counting of how its calls went.

/// The last calls to one server.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    in_a_row: u32,
    /// The last calls, the newest in the lowest bit; a set bit failed.
    failed: u64,
    noted: u32,
}

impl Breaker {
    /// Notes how a call went; answers whether that is one failure too many.
    pub(super) fn note(&mut self, went_well: bool) -> bool {
        self.failed = self.failed << 1 | u64::from(!went_well);
        self.noted = (self.noted + 1).min(u64::BITS);
        self.in_a_row = if went_well { 0 } else { self.in_a_row + 1 };
        let many = self.noted >= JUDGED_FROM && 2 * self.failed.count_ones() >= self.noted;
        !went_well && (self.in_a_row >= IN_A_ROW || many)
    }

    /// Forgets, once the server answers again.
    pub(super) fn reset(&mut self) {
        *self = Breaker::default();
    }
}

/// A lost packet costs one call, a restart two: a third is an outage.
const IN_A_ROW: u32 = 3;
/// So many calls before half of them failing means anything.
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
    fn an_answer_after_an_outage_is_a_new_beginning() {
        let mut breaker = Breaker::default();
        (0..64).for_each(|_| {
            breaker.note(false);
        });
        breaker.reset();
        assert!(!breaker.note(false));
    }
}
