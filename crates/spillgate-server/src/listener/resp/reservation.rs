//! Parses and runs the commands of reservations: `SG.RESERVE`, `SG.SETTLE`, `SG.CANCEL`, `SG.RELEASE` and `SG.RENEW`.
//! Each runs by itself, after the checks before it are answered.

use std::time::Duration;

use spillgate::reservation::{Receipt, ReservationError, Reserve, Usage};
use spillgate::{Reason, Request};

use super::answer::Answer;
use super::reply::Replies;
use super::request::{cost, name, number, quoted, sg_check};
use crate::app::App;
use crate::bounds::{NO_ROOM, PART_DOWN, RESERVATION_NAME_MAX};

/// A command about a reservation.
#[derive(Debug)]
pub enum Reservation<'a> {
    Reserve { request: Box<Request<'a>>, reserve: Reserve<'a> },
    Settle { receipt: Receipt, usage: Usage<'a> },
    Cancel(Receipt),
    Release(Receipt),
    Renew { receipt: Receipt, lasting: Duration },
}

/// A command about a reservation, or the problem of an argument.
pub type ParsedReservation<'a> = Result<Reservation<'a>, String>;

/// Parses `SG.RESERVE domain cost ttl_ms id [attribute value …]`. The id `-` is none.
pub fn reserve<'a>(arguments: &[&'a [u8]]) -> ParsedReservation<'a> {
    let lasting = milliseconds(arguments[2])?;
    let mut reserve = Reserve::lasting(lasting);
    if arguments[3] != b"-" {
        let text = std::str::from_utf8(arguments[3]).ok();
        let text = text.filter(|text| (1..=RESERVATION_NAME_MAX).contains(&text.len()));
        reserve = reserve.under(text.ok_or_else(|| {
            let id = quoted(arguments[3]);
            format!(
                "id: {id} is not a valid id; write 1 to {RESERVATION_NAME_MAX} bytes of UTF-8, or -"
            )
        })?);
    }
    let as_check: Vec<&[u8]> = arguments[..2].iter().chain(&arguments[4..]).copied().collect();
    let (request, _) = sg_check(&as_check)?;
    Ok(Reservation::Reserve { request: Box::new(request), reserve })
}

/// Parses `SG.SETTLE receipt cost`.
pub fn settle<'a>(arguments: &[&'a [u8]]) -> ParsedReservation<'a> {
    Ok(Reservation::Settle { receipt: receipt(arguments[0])?, usage: usage(arguments[1])? })
}

/// Parses `SG.CANCEL receipt`.
pub fn cancel<'a>(arguments: &[&'a [u8]]) -> ParsedReservation<'a> {
    receipt(arguments[0]).map(Reservation::Cancel)
}

/// Parses `SG.RELEASE receipt`.
pub fn release<'a>(arguments: &[&'a [u8]]) -> ParsedReservation<'a> {
    receipt(arguments[0]).map(Reservation::Release)
}

/// Parses `SG.RENEW receipt ttl_ms`.
pub fn renew<'a>(arguments: &[&'a [u8]]) -> ParsedReservation<'a> {
    let lasting = milliseconds(arguments[1])?;
    Ok(Reservation::Renew { receipt: receipt(arguments[0])?, lasting })
}

impl Reservation<'_> {
    pub async fn run(&self, app: &App, replies: &mut Replies) {
        if let Err(why) = app.takes_reservations() {
            return replies.error(&format!("NOPERM {why}"));
        }
        let outcome = match self {
            Reservation::Reserve { request, reserve } => {
                if let Err(why) = app.require_names(request) {
                    return replies.error(&format!("ERR {}: {why}", why.field));
                }
                return match app.reserve(request, reserve).await {
                    Ok(decision) if decision.reason() == Some(Reason::Overloaded) => {
                        replies.error(&format!("OVERLOADED {NO_ROOM}"))
                    }
                    Ok(decision) => Answer::Reserved.write(&decision, replies),
                    Err(error) => replies.error(&in_reply(&error)),
                };
            }
            Reservation::Settle { receipt, usage } => {
                // The reply has no place for a sentence about a unit, but the log does.
                app.note_units(usage);
                app.limiter().settle(receipt, usage).await
            }
            Reservation::Cancel(receipt) => app.limiter().cancel(receipt).await,
            Reservation::Release(receipt) => app.limiter().release(receipt).await,
            Reservation::Renew { receipt, lasting } => app.limiter().renew(receipt, *lasting).await,
        };
        match outcome {
            Ok(outcome) => replies.status(outcome.name()),
            Err(error) => replies.error(&in_reply(&error)),
        }
    }
}

fn in_reply(error: &ReservationError) -> String {
    let code = match error {
        ReservationError::Conflict | ReservationError::EndedOtherwise => "CONFLICT",
        ReservationError::Ended(how) => return format!("ENDED {how}: {error}"),
        ReservationError::Retryable { .. } => return format!("TRYAGAIN {PART_DOWN}"),
        ReservationError::Lasting(_) => "ERR ttl_ms:",
        _ => "ERR",
    };
    format!("{code} {error}")
}

fn receipt(text: &[u8]) -> Result<Receipt, String> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    text.parse().map_err(|error| format!("receipt: {error}"))
}

fn milliseconds(text: &[u8]) -> Result<Duration, String> {
    number("ttl_ms", text, 1..=TTL_MAX_MS).map(Duration::from_millis)
}

/// Parses a usage such as `512` or `requests=1,tokens=512`. A unit that is not named was used as estimated.
fn usage(text: &[u8]) -> Result<Usage<'_>, String> {
    let whole = cost(text)?;
    if !text.contains(&b'=') {
        return Ok(Usage::from(whole.amount("requests")));
    }
    let mut usage = Usage::default();
    for part in text.split(|byte| *byte == b',') {
        let unit = part.split(|byte| *byte == b'=').next().unwrap_or_default();
        let unit = name("unit of cost", unit)?;
        usage = usage.and(unit, whole.amount(unit));
    }
    Ok(usage)
}

/// The milliseconds of 24 hours, the longest time to live.
const TTL_MAX_MS: u64 = 86_400_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_argument_and_the_fix() {
        let refusal = |read: fn(&[&'static [u8]]) -> ParsedReservation<'static>,
                       line: &'static str| {
            let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            read(&arguments).map(|_| ()).expect_err(line)
        };
        for (line, complaint) in [
            ("web 1 0 -", "ttl_ms: '0' is not a whole number from 1 to 86400000"),
            ("web 1 86400001 -", "ttl_ms: '86400001' is not a whole number from 1 to 86400000"),
            ("web 1 x -", "ttl_ms: 'x' is not a whole number"),
            ("web 1 1000 ", "id: '' is not a valid id; write 1 to 128 bytes"),
            ("web x 1000 -", "cost: 'x' is not a whole number"),
            ("web 1 1000 - ip", "attribute 'ip': has no value"),
        ] {
            let error = refusal(reserve, line);
            assert!(error.starts_with(complaint), "{line}: {error}");
        }
        assert!(refusal(settle, "x 1").starts_with("receipt: this is not a receipt"));
        assert!(refusal(renew, "AQAB 0").starts_with("ttl_ms: '0'"));
    }

    #[test]
    fn only_the_units_that_are_named_are_settled() {
        assert_eq!(usage(b"7"), Ok(Usage::from(7)));
        assert_eq!(usage(b"tokens=0,bytes=9"), Ok(Usage::of_unit("tokens", 0).and("bytes", 9)));
        assert!(usage(b"tokens=").is_err());
    }
}
