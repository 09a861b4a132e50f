//! A window and a count, in big integers.

use num_bigint::BigInt;
use spillgate_core::algorithm::{LimitParams, fixed_window};

use super::{Counter, number};

#[derive(Clone)]
pub(super) struct Stored {
    start: BigInt,
    end: BigInt,
    used: BigInt,
    life: Option<usize>,
}

pub(super) struct Window {
    limit: fixed_window::Params,
    now: BigInt,
    /// Absent if nothing is in use.
    current: Option<Stored>,
    is_rebased: bool,
}

impl Window {
    fn usage(&self) -> BigInt {
        self.current.as_ref().map_or(BigInt::ZERO, |current| current.used.clone())
    }

    fn left(&self) -> u64 {
        number(self.current.as_ref().map_or(BigInt::ZERO, |current| &current.end - &self.now))
    }
}

impl Counter for Window {
    type Stored = Option<Stored>;
    /// Life, instant and units.
    type Receipt = (usize, BigInt, u64);

    fn at(stored: &Option<Stored>, params: &LimitParams, now_us: u64) -> Window {
        let LimitParams::FixedWindow(limit) = params else { panic!("no fixed window") };
        let now = BigInt::from(now_us);
        let tolerated = limit.window.longest_us().min(1_000_000);
        let mut is_rebased = false;
        let mut current = stored.clone().filter(|stored| now < stored.end);
        if let Some(stored) = &mut current
            && &stored.start - &now > BigInt::from(tolerated)
        {
            let (start, end) = window_of(limit, &now);
            *stored = Stored { start, end, used: stored.used.clone(), life: None };
            is_rebased = true;
        }
        Window { limit: *limit, now, current, is_rebased }
    }

    fn stored(&self) -> Option<Stored> {
        self.current.clone()
    }

    fn used(&self) -> u64 {
        number(self.usage())
    }

    fn capacity(&self) -> u64 {
        self.limit.count.into()
    }

    fn is_rebased(&self) -> bool {
        self.is_rebased
    }

    fn charge(&mut self, units: u64) {
        let now = self.now.clone();
        let at =
            self.current.as_ref().map_or(now.clone(), |current| current.start.clone().max(now));
        let (start, end) = window_of(&self.limit, &at);
        let same = self.current.as_ref().filter(|it| (&it.start, &it.end) == (&start, &end));
        let life = same.and_then(|current| current.life);
        self.current = Some(Stored { start, end, used: self.usage() + units, life });
    }

    fn receipt(&mut self, units: u64, number: usize) -> Self::Receipt {
        let current = self.current.as_mut().expect("it was just charged");
        (*current.life.get_or_insert(number), self.now.clone(), units)
    }

    fn refund(&mut self, (life, at, units): &Self::Receipt, unused: u64) -> Option<u64> {
        let current = self.current.as_ref()?;
        let is_of_this_life = current.life == Some(*life) && *at <= self.now;
        if is_of_this_life { self.lower(unused.min(*units)) } else { None }
    }

    fn lower(&mut self, units: u64) -> Option<u64> {
        let returned = self.usage().min(BigInt::from(units));
        let current = self.current.as_mut().filter(|_| returned > BigInt::ZERO)?;
        current.used -= &returned;
        self.current.take_if(|current| current.used == BigInt::ZERO);
        Some(number(returned))
    }

    fn retry_after_us(&self, _units: u64) -> u64 {
        self.left()
    }

    fn reset_after_us(&self) -> u64 {
        self.left()
    }
}

fn window_of(limit: &fixed_window::Params, at: &BigInt) -> (BigInt, BigInt) {
    match &limit.window {
        fixed_window::Window::Every { period_us } => {
            let start = at / period_us * period_us;
            (start.clone(), start + period_us)
        }
        // The calendar has vectors of its own.
        fixed_window::Window::Calendar(calendar) => {
            let [_, start, end, _] = calendar.around(number(at.clone()));
            (start.into(), end.into())
        }
    }
}
