//! The denials of some hours in this process: all of them with state in memory, else those that were read.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use super::minute::EndedMinute;
use super::{
    DenialCount, Denials, Denied, DeniedHour, DeniedSubject, Fit, HOURS_KEPT, MINUTES, begin_of,
};

/// The counts of each hour.
#[derive(Debug, Default)]
pub(crate) struct Hours(BTreeMap<u64, Hour>);

#[derive(Debug, Default)]
struct Hour {
    subjects: HashMap<u64, DenialCount>,
    others: u64,
}

impl Hours {
    /// Adds a minute of this instance, and drops hours that are too old.
    pub(crate) fn add(&mut self, ended: EndedMinute) {
        let EndedMinute { minute, others, subjects } = ended;
        let hour = self.0.entry(minute / MINUTES).or_default();
        hour.others += others;
        for (field, count) in subjects {
            let count = DenialCount { minutes: 1 << (minute % MINUTES), ..count };
            let has_room = hour.subjects.len() < FIELDS_MAX;
            match hour.subjects.entry(field) {
                Entry::Occupied(known) => known.into_mut().add(&count),
                Entry::Vacant(new) if has_room => drop(new.insert(count)),
                Entry::Vacant(_) => hour.others += u64::from(count.denied),
            }
        }
        self.forget_before((minute / MINUTES).saturating_sub(HOURS_KEPT));
    }

    /// Sets what the record has of a subject in an hour.
    pub(crate) fn set(&mut self, hour: u64, field: u64, count: DenialCount) {
        self.0.entry(hour).or_default().subjects.insert(field, count);
    }

    /// Sets the denials of an hour that are not counted by subject.
    pub(crate) fn set_others(&mut self, hour: u64, others: u64) {
        self.0.entry(hour).or_default().others = others;
    }

    /// Drops the hours before this one.
    pub(crate) fn forget_before(&mut self, hour: u64) {
        self.0 = self.0.split_off(&hour);
    }

    /// Returns the subjects with one of these fields that were denied since a minute.
    pub(crate) fn of(&self, fields: &[u64], since: u64) -> Denials {
        self.search(since, |field, _| fields.contains(&field).then_some(Fit::Part))
    }

    /// Returns the subjects that were denied since a minute, and that fit: the better ones first, then the most denied.
    pub(crate) fn matching(&self, since: u64, fit: impl Fn(&Denied) -> Option<Fit>) -> Denials {
        self.search(since, |_, count| fit(&count.subject))
    }

    fn search(&self, since: u64, fit: impl Fn(u64, &DenialCount) -> Option<Fit>) -> Denials {
        let minutes_of = |hour: u64, count: &DenialCount| {
            let bits = count.minutes;
            let minutes = (0..MINUTES).filter(move |minute| bits >> minute & 1 == 1);
            minutes.map(move |minute| hour * MINUTES + minute).filter(move |at| *at >= since)
        };
        // A search may find half a million subjects, of which few are listed.
        let mut denied: HashMap<u64, (Fit, u64)> = HashMap::new();
        let mut others = 0;
        for (hour, of_hour) in self.0.range(since / MINUTES..) {
            others = u64::saturating_add(others, of_hour.others);
            for (field, count) in &of_hour.subjects {
                let Some(fit) = fit(*field, count) else { continue };
                if minutes_of(*hour, count).next().is_some() {
                    denied.entry(*field).or_insert((fit, 0)).1 += u64::from(count.denied);
                }
            }
        }
        let rank = |(field, (fit, denied))| (fit, Reverse(denied), field);
        let mut ranked: Vec<(Fit, Reverse<u64>, u64)> = denied.into_iter().map(rank).collect();
        let left_out = ranked.len().saturating_sub(LISTED_MAX);
        if left_out > 0 {
            ranked.select_nth_unstable(LISTED_MAX);
            ranked.truncate(LISTED_MAX);
        }
        let mut subjects: Vec<(Fit, DeniedSubject)> = Vec::with_capacity(ranked.len());
        for (fit, _, field) in ranked {
            let hours = self.0.range(since / MINUTES..);
            let counts = hours.filter_map(|(hour, of)| Some((*hour, of.subjects.get(&field)?)));
            let counts = counts.filter(|(hour, it)| minutes_of(*hour, it).next().is_some());
            let counts: Vec<(u64, &DenialCount)> = counts.collect();
            let Some((_, last)) = counts.last() else { continue };
            let mut subject = DeniedSubject::new(&last.subject, last.reason);
            for (hour, count) in counts {
                subject.add(DeniedHour {
                    begin: begin_of(hour * MINUTES),
                    denied: u64::from(count.denied),
                    allowed: count.allowed.map(u64::from),
                    minutes: minutes_of(hour, count).map(begin_of).collect(),
                });
            }
            subjects.push((fit, subject));
        }
        subjects.sort_unstable_by(|(fit, one), (other_fit, other)| {
            let names =
                |it: &DeniedSubject| (it.rule.clone(), it.limit.clone(), it.attributes.clone());
            let by_count =
                other.denied.cmp(&one.denied).then_with(|| names(one).cmp(&names(other)));
            fit.cmp(other_fit).then(by_count)
        });
        let subjects = subjects.into_iter().map(|(_, subject)| subject).collect();
        Denials { subjects, others, is_recording: true, unread_hours: 0, left_out }
    }
}

impl DenialCount {
    fn add(&mut self, other: &DenialCount) {
        self.denied = self.denied.saturating_add(other.denied);
        // The store has no larger number that is known either.
        let sum = self.allowed.zip(other.allowed).and_then(|(one, more)| one.checked_add(more));
        self.allowed = sum;
        self.minutes |= other.minutes;
        self.reason = other.reason;
    }
}

/// The most subjects of an hour in memory, as on a store.
const FIELDS_MAX: usize = 10_000;
/// The most subjects in one answer.
const LISTED_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Reason;
    use crate::denials::Denied;

    fn minute(minute: u64, users: impl Iterator<Item = u64>, denied: u32) -> EndedMinute {
        let subjects = users.map(|user| {
            let value = format!("Tenant-{user}");
            let subject =
                Denied::new("api", "0", [("user", value.as_bytes())].into_iter()).unwrap();
            let reason = Reason::LimitExceeded;
            let (allowed, subject) = (Some(10 * denied), subject.into());
            (user, DenialCount { denied, allowed, minutes: 0, reason, subject })
        });
        EndedMinute { minute, others: 5, subjects: subjects.collect() }
    }

    #[test]
    fn minutes_of_several_hours_are_listed_from_the_one_asked_for() {
        let mut hours = Hours::default();
        for at in [59, 60, 119, 120] {
            hours.add(minute(at, [7].into_iter(), 3));
        }
        let found = hours.of(&[7, 8], 60);
        assert_eq!(found.subjects[0].minutes, [60, 119, 120].map(begin_of));
        assert_eq!((found.subjects.len(), found.subjects[0].denied, found.others), (1, 9, 15));
        assert!(hours.of(&[7], 121).subjects.is_empty());
        let like = |part: &str| hours.matching(0, |subject| subject.fit(part.as_bytes()));
        assert_eq!(like("tenant-7").subjects[0].denied, 12, "in capitals or not");
        assert!(like("tenant-8").subjects.is_empty());
    }

    #[test]
    fn hours_have_their_own_counts_and_an_unknown_one_makes_the_sum_unknown() {
        let mut hours = Hours::default();
        for at in [59, 60, 119] {
            hours.add(minute(at, [7].into_iter(), 3));
        }
        let counts = |hours: &Hours| {
            let found = hours.of(&[7], 0).subjects.remove(0);
            let each = found.hours.iter().map(|hour| (hour.begin, hour.denied, hour.allowed));
            (found.allowed, each.collect::<Vec<_>>())
        };
        let (first, second) = ((begin_of(0), 3, Some(30)), (begin_of(60), 6, Some(60)));
        assert_eq!(counts(&hours), (Some(90), vec![first, second]));
        let mut unknown = minute(61, [7].into_iter(), 1);
        unknown.subjects[0].1.allowed = None;
        hours.add(unknown);
        hours.add(minute(62, [7].into_iter(), 1));
        assert_eq!(counts(&hours), (None, vec![first, (begin_of(60), 8, None)]));
        assert_eq!(hours.of(&[7], 0).subjects[0].minutes, [59, 60, 61, 62, 119].map(begin_of));
    }

    #[test]
    fn an_hour_has_10000_subjects_and_two_days_are_kept() {
        let mut hours = Hours::default();
        hours.add(minute(0, 0..9_999, 1));
        hours.add(minute(1, 9_998..10_100, 2));
        assert_eq!(hours.0[&0].subjects.len(), 10_000);
        assert_eq!(hours.0[&0].others, 10 + 2 * 100);
        let whole = |part: &str| hours.matching(0, |subject| subject.fit(part.as_bytes()));
        let first = whole("tenant-1").subjects.remove(0);
        assert_eq!(first.attributes[0].1, b"Tenant-1", "before 1,111 others with this part");
        let listed = hours.matching(0, |_| Some(Fit::Part));
        assert_eq!((listed.subjects.len(), listed.left_out), (100, 9_900));
        hours.add(minute(HOURS_KEPT * MINUTES, [1].into_iter(), 1));
        assert!(hours.0.contains_key(&0));
        hours.add(minute((HOURS_KEPT + 1) * MINUTES, [1].into_iter(), 1));
        assert!(!hours.0.contains_key(&0));
    }
}
