//! Receipts of reservations: opaque texts that cannot be forged.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use siphasher::sip128::SipHasher24;
use smallvec::SmallVec;

use super::{GROUPS_MAX, Group, ReceiptError};
use crate::subject::Secret;

/// The receipt of a reservation, which settles, cancels, releases or renews it.
///
/// Its text is valid at every instance of the fleet, unless it is local.
///
/// ```
/// use spillgate::reservation::Receipt;
/// assert!("no receipt".parse::<Receipt>().is_err());
/// ```
#[derive(Clone)]
pub struct Receipt(Arc<Whole>);

struct Whole {
    text: Box<str>,
    contents: Contents,
    mac: u128,
}

/// The contents of a receipt.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The id of the reservation.
    pub id: u128,
    /// The instance that charged some of it by local shares during an outage.
    pub node: Option<u64>,
    /// The locations of its records.
    pub groups: SmallVec<[Group; 1]>,
}

/// Makes and verifies receipts with the secret, so that they cannot be forged.
#[derive(Clone)]
pub struct Seal(SipHasher24);

impl Receipt {
    /// Returns the text of the receipt: ASCII, at most 512 bytes.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::reservation::{Receipt, Reserve};
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let request = Request::keyed("user:42", Limit::per_minute(5));
    /// let decision = limiter.reserve(&request, &Reserve::default()).await.unwrap();
    /// // Keep the text, or pass it on: any process of the fleet can settle with it.
    /// let text = decision.receipt().unwrap().as_str();
    /// let receipt: Receipt = text.parse().unwrap();
    /// assert!(!receipt.is_local());
    /// # });
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Returns whether one instance charged part of it by local shares during an outage. Only that
    /// instance can refund that part.
    #[doc(hidden)]
    pub fn is_local(&self) -> bool {
        self.0.contents.node.is_some()
    }
}

impl Seal {
    /// Creates the seal of a secret.
    pub fn new(secret: &Secret) -> Seal {
        let [first @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] =
            secret.derived(b"receipts");
        Seal(SipHasher24::new_with_key(&first))
    }

    /// Makes the receipt with these contents.
    pub fn receipt(&self, contents: Contents) -> Receipt {
        let mut bytes = contents.encoded();
        let mac = self.0.hash(&bytes).as_u128();
        bytes.extend(mac.to_be_bytes());
        Receipt(Arc::new(Whole { text: URL_SAFE_NO_PAD.encode(bytes).into(), contents, mac }))
    }

    /// Returns the contents of a receipt if it is authentic.
    pub fn open<'r>(&self, receipt: &'r Receipt) -> Option<&'r Contents> {
        let Whole { contents, mac, .. } = &*receipt.0;
        let bytes = contents.encoded();
        (self.0.hash(&bytes).as_u128() == *mac).then_some(contents)
    }
}

impl Contents {
    fn encoded(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, u8::from(self.node.is_some())];
        bytes.extend(self.id.to_be_bytes());
        bytes.extend(self.node.map(u64::to_be_bytes).iter().flatten());
        self.groups.iter().for_each(|group| bytes.extend(group.tag.to_be_bytes()));
        bytes
    }

    fn decoded(bytes: &[u8]) -> Option<Contents> {
        let (&[version, local], rest) = bytes.split_first_chunk()?;
        let (id, mut rest) = rest.split_first_chunk()?;
        let mut node = None;
        if local == 1 {
            let (bytes, after) = rest.split_first_chunk()?;
            (node, rest) = (Some(u64::from_be_bytes(*bytes)), after);
        }
        let (tags, odd) = rest.as_chunks::<16>();
        let whole = version == VERSION && local <= 1 && odd.is_empty() && tags.len() <= GROUPS_MAX;
        let group = |tag: &[u8; 16]| Group { tag: u128::from_be_bytes(*tag), counters: None };
        whole.then(|| Contents {
            id: u128::from_be_bytes(*id),
            node,
            groups: tags.iter().map(group).collect(),
        })
    }
}

/// Parses a receipt. Whether it is authentic is checked when it is used.
impl FromStr for Receipt {
    type Err = ReceiptError;

    fn from_str(text: &str) -> Result<Receipt, ReceiptError> {
        if text.len() > TEXT_MAX {
            return Err(ReceiptError);
        }
        // Padding and unused bits are rejected, so that each receipt has only one text.
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| ReceiptError)?;
        let (contents, mac) = bytes.split_last_chunk().ok_or(ReceiptError)?;
        let contents = Contents::decoded(contents).ok_or(ReceiptError)?;
        let mac = u128::from_be_bytes(*mac);
        Ok(Receipt(Arc::new(Whole { text: text.into(), contents, mac })))
    }
}

impl PartialEq for Receipt {
    fn eq(&self, other: &Receipt) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Receipt {}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Hides the text in logs, since it suffices to end the reservation.
impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receipt(..)")
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(..)")
    }
}

const VERSION: u8 = 1;
/// The contract's limit. 16 groups take 398 bytes.
const TEXT_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::SHARED_SECRET;
    use proptest::prelude::*;

    fn contents(id: u128, node: Option<u64>, tags: &[u128]) -> Contents {
        let groups = tags.iter().map(|tag| Group { tag: *tag, counters: None }).collect();
        Contents { id, node, groups }
    }

    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

    #[test]
    fn a_receipt_has_one_text() {
        let seal = Seal::new(&Secret::new(&SHARED_SECRET));
        let receipt = seal.receipt(contents(1, None, &[2]));
        // Of the last letter's six bits, the first four belong to the 50th byte.
        let (rest, last) = receipt.as_str().split_at(receipt.as_str().len() - 1);
        let last = LETTERS.iter().position(|letter| last.as_bytes() == [*letter]).unwrap();
        assert!(receipt.as_str().parse::<Receipt>().is_ok());
        let with_unused_bit = format!("{rest}{}", char::from(LETTERS[last + 1]));
        for other in [with_unused_bit, format!("{receipt}="), format!("{receipt}A")] {
            assert!(other.parse::<Receipt>().is_err(), "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_receipt_has_the_same_contents_at_every_instance(
            id: u128, node: Option<u64>, tags in prop::collection::vec(any::<u128>(), 0..=GROUPS_MAX)
        ) {
            let seal = Seal::new(&Secret::new(&SHARED_SECRET));
            let receipt = seal.receipt(contents(id, node, &tags));
            prop_assert!(receipt.as_str().len() <= TEXT_MAX && receipt.as_str().is_ascii());
            let read: Receipt = receipt.as_str().parse().unwrap();
            let contents = seal.open(&read).unwrap();
            prop_assert_eq!((contents.id, contents.node), (id, node));
            prop_assert_eq!(contents.groups.iter().map(|group| group.tag).collect::<Vec<_>>(), tags);
            prop_assert_eq!(read.is_local(), node.is_some());
            let foreign = Seal::new(&Secret::new(&[7; 16]));
            prop_assert!(foreign.open(&read).is_none());
        }

        #[test]
        fn a_changed_letter_anywhere_makes_a_receipt_invalid(
            id: u128, tag: u128, place: prop::sample::Index, letter in 0..64usize
        ) {
            let seal = Seal::new(&Secret::new(&SHARED_SECRET));
            let receipt = seal.receipt(contents(id, None, &[tag]));
            let mut text = receipt.as_str().to_owned().into_bytes();
            let place = place.index(text.len());
            prop_assume!(text[place] != LETTERS[letter]);
            text[place] = LETTERS[letter];
            let text = String::from_utf8(text).unwrap();
            prop_assert!(text.parse().ok().is_none_or(|read| seal.open(&read).is_none()));
        }

        #[test]
        fn a_parsed_receipt_has_its_own_text(text: String) {
            if let Ok(receipt) = text.parse::<Receipt>() {
                prop_assert_eq!(receipt.as_str(), text);
            }
        }
    }
}
