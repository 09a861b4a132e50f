//! Bounds on what a limit lets pass, to compare it with another limit.

use super::fixed_window::Window;

/// The most that a limit allows: in any L µs, `burst + L × count / period_us`.
pub struct Passing {
    /// The most at once.
    pub burst: u128,
    /// The most per period in the long run.
    pub count: u128,
    /// The period.
    pub period_us: u128,
    /// The times at which quota becomes free.
    pub shape: Shape,
}

/// The times at which quota becomes free.
pub enum Shape {
    /// At any time, as the bucket drains.
    Evenly,
    /// `count` at once, and again a period later.
    Spaced,
    /// `count` in each of these windows, and so twice that around a boundary.
    Windows(Window),
}

impl Passing {
    /// Returns the most of windows, each of which holds `count` whatever the one before it held.
    pub fn windows(count: u32, window: Window) -> Passing {
        let (count, period_us) = (u128::from(count), u128::from(window.shortest_us()));
        Passing { burst: 2 * count, count, period_us, shape: Shape::Windows(window) }
    }

    /// Returns the most between two instants `span_us` apart, both included.
    pub fn within(&self, span_us: u64) -> u128 {
        let span_us = u128::from(span_us);
        match &self.shape {
            Shape::Evenly => self.burst + self.count * span_us / self.period_us,
            Shape::Spaced => self.count * (span_us / self.period_us + 1),
            Shape::Windows(_) if span_us == 0 => self.count,
            Shape::Windows(_) => self.count * ((span_us - 1) / self.period_us + 2),
        }
    }

    /// Returns the most in any window of another limit.
    pub fn within_window(&self, window: &Window) -> u128 {
        match (&self.shape, window) {
            (Shape::Windows(own), window) if own == window => self.count,
            (Shape::Windows(Window::Every { period_us: own }), Window::Every { period_us })
                if own.is_multiple_of(*period_us) =>
            {
                self.count
            }
            (Shape::Windows(Window::Every { period_us: own }), Window::Every { period_us })
                if period_us.is_multiple_of(*own) =>
            {
                self.count * u128::from(period_us / own)
            }
            _ => self.within(window.longest_us() - 1),
        }
    }
}
