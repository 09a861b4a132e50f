//! Buckets that their numbers tell all of: most limits that come with a question are such, and a decision
//! that keeps one copies these and looks at nothing else.

use super::{Algorithm, Kind, Limit};
use crate::algorithm::{Numbers, token_bucket};

impl Limit {
    /// The numbers of a token bucket without a name, counting requests.
    #[inline]
    pub(crate) fn as_plain_bucket(&self) -> Option<&token_bucket::Numbers> {
        match &self.kind {
            Kind::Counted(Numbers::TokenBucket(numbers)) if self.words.is_none() => Some(numbers),
            _ => None,
        }
    }

    /// The bucket of such numbers.
    #[inline]
    pub(crate) fn plain_bucket(numbers: token_bucket::Numbers) -> Limit {
        let kind = Kind::Counted(Numbers::TokenBucket(numbers));
        Limit { kind, algorithm: Algorithm::TokenBucket, words: None }
    }
}
