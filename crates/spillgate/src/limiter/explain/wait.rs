//! Prints a wait for people.

use std::fmt;
use std::time::Duration;

/// A wait in the unit that fits, rounded up, as the sentences of an explanation have it.
///
/// ```
/// use std::time::Duration;
///
/// use spillgate::explain::Wait;
///
/// assert_eq!(Wait(Duration::from_millis(11_001)).to_string(), "11.1 s");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Wait(pub Duration);

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_micros().div_ceil(1_000);
        let seconds = ms.div_ceil(1_000);
        match ms {
            0..1_000 => write!(f, "{ms} ms"),
            1_000..120_000 => {
                let tenths = ms.div_ceil(100);
                write!(f, "{}.{} s", tenths / 10, tenths % 10)
            }
            120_000..7_200_000 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            7_200_000..172_800_000 => {
                let minutes = seconds.div_ceil(60);
                write!(f, "{} h {} min", minutes / 60, minutes % 60)
            }
            _ => {
                let hours = seconds.div_ceil(3_600);
                write!(f, "{} d {} h", hours / 24, hours % 24)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_a_wait_in_the_unit_that_fits_and_rounds_up() {
        for (us, text) in [
            (0, "0 ms"),
            (1, "1 ms"),
            (999_000, "999 ms"),
            (999_001, "1.0 s"),
            (1_001_000, "1.1 s"),
            (11_000_001, "11.1 s"),
            (120_000_000, "2 min 0 s"),
            (120_001_000, "2 min 1 s"),
            (7_200_000_000, "2 h 0 min"),
            (7_200_001_000, "2 h 1 min"),
            (172_800_001_000, "2 d 1 h"),
        ] {
            assert_eq!(Wait(Duration::from_micros(us)).to_string(), text, "{us} µs");
        }
    }
}
