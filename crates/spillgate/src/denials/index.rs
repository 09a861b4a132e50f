//! What this instance has read of the fleet's record to search it by parts of values. It is kept while pages ask.

use std::collections::HashMap;

use super::{Hours, MINUTE_US, MINUTES};

/// The hours as they were read.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) hours: Hours,
    pages: HashMap<u64, Pages>,
    asked_us: u64,
}

/// How far an hour was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// The next page begins there.
    UpTo(u64),
    /// All, at this time.
    WholeAt(u64),
}

/// The next page to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) hour: u64,
    pub(crate) cursor: u64,
}

impl Index {
    /// Notes a question, and returns the next page to read for it: newer hours first. `None` if all was read.
    pub(crate) fn next_page(&mut self, since_hour: u64, now_us: u64) -> Option<Page> {
        self.asked_us = now_us;
        let now_hour = now_us / MINUTE_US / MINUTES;
        (since_hour..=now_hour).rev().find_map(|hour| {
            let cursor = match self.pages.get(&hour) {
                None => 0,
                Some(Pages::UpTo(cursor)) => *cursor,
                Some(Pages::WholeAt(at_us)) => {
                    // After an outage of the store, minutes of an hour ago are written.
                    let was_final = *at_us >= (hour + 3) * MINUTES * MINUTE_US;
                    if was_final || now_us.saturating_sub(*at_us) < FRESH_US {
                        return None;
                    }
                    0
                }
            };
            Some(Page { hour, cursor })
        })
    }

    /// Notes that a page was read, and where the next begins; 0 after the last.
    pub(crate) fn note_page(&mut self, page: Page, next: u64, now_us: u64) {
        let pages = if next == 0 { Pages::WholeAt(now_us) } else { Pages::UpTo(next) };
        self.pages.insert(page.hour, pages);
    }

    /// Returns how many hours are not read to their end.
    pub(crate) fn unread(&self, since_hour: u64, now_us: u64) -> u64 {
        let hours = since_hour..=now_us / MINUTE_US / MINUTES;
        let is_unread = |hour: &u64| !matches!(self.pages.get(hour), Some(Pages::WholeAt(_)));
        hours.filter(is_unread).count() as u64
    }

    /// Drops all if no page has asked for a while.
    pub(crate) fn drop_unused(&mut self, now_us: u64) {
        if !self.pages.is_empty() && now_us.saturating_sub(self.asked_us) >= UNUSED_US {
            *self = Index::default();
        }
    }
}

/// How old an hour may be that still changes.
const FRESH_US: u64 = 30_000_000;
/// How long the index is kept after the last question.
const UNUSED_US: u64 = 600_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_US: u64 = MINUTE_US * MINUTES;

    #[test]
    fn hours_are_read_page_by_page_and_only_those_that_change_are_read_again() {
        let mut index = Index::default();
        let now_us = 9 * HOUR_US;
        let mut read = Vec::new();
        while let Some(page) = index.next_page(6, now_us) {
            assert_eq!(index.unread(6, now_us), page.hour - 5, "newer ones first");
            read.push((page.hour, page.cursor));
            index.note_page(page, if page.cursor == 0 { 5 } else { 0 }, now_us);
        }
        assert_eq!(read, [9, 8, 7, 6].map(|hour| [(hour, 0), (hour, 5)]).concat());
        assert_eq!(index.next_page(6, now_us + FRESH_US - 1), None);
        let later_us = now_us + FRESH_US;
        for hour in [9, 8, 7] {
            assert_eq!(index.next_page(6, later_us), Some(Page { hour, cursor: 0 }));
            index.note_page(Page { hour, cursor: 0 }, 0, later_us);
        }
        assert_eq!(index.next_page(6, later_us), None, "older hours stay as they are");
        // Read before its end, an hour is read again however late the next question comes.
        let much_later_us = later_us + UNUSED_US - 1;
        for hour in [9, 8, 7] {
            assert_eq!(index.next_page(hour, much_later_us), Some(Page { hour, cursor: 0 }));
            index.note_page(Page { hour, cursor: 0 }, 0, much_later_us);
        }
        let later_us = much_later_us;
        index.drop_unused(later_us + UNUSED_US - 1);
        assert_eq!(index.next_page(6, later_us), None);
        index.drop_unused(later_us + UNUSED_US);
        assert_eq!(index.next_page(6, later_us), Some(Page { hour: 9, cursor: 0 }));
    }
}
