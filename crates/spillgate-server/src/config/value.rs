//! Parses the values of settings, in the same way for file, environment and flags.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use spillgate::http::ByIp;

use super::{Listen, Sample};

/// Parses the address of a listener; `off` is `None`.
pub fn address(text: &str) -> Result<Listen, String> {
    if text == "off" {
        return Ok(None);
    }
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let address = local.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    address.or_else(|| text.parse().ok()).map(Some).ok_or_else(|| {
        format!(
            "{text:?} is not an address to listen on; write an IP address and a port, \
             such as \"127.0.0.1:8080\", or \"off\""
        )
    })
}

/// Checks the address of a store. The message does not quote it, because it may hold a password.
pub fn store_url(text: &str) -> Result<String, String> {
    let known = ["redis://", "rediss://", "unix://"].iter().any(|scheme| text.starts_with(scheme));
    known.then(|| text.to_owned()).ok_or_else(|| {
        "no address of a store; write redis://user:password@host:port/database, rediss:// for TLS, \
         or unix:///path, or leave the setting out to keep state in memory"
            .to_owned()
    })
}

/// Parses the addresses of a store: a list of at least one.
pub fn store_urls(text: &str) -> Result<Vec<String>, String> {
    let urls: Vec<String> = list(text).map(store_url).collect::<Result<_, _>>()?;
    if urls.is_empty() {
        Err("name the address of one server at least".to_owned())
    } else {
        Ok(urls)
    }
}

/// Parses the address of a collector of traces; `off` is `None`.
pub fn collector(text: &str) -> Result<Option<String>, String> {
    if text == "off" {
        return Ok(None);
    }
    let host = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let named = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '@', ' ']));
    named.then(|| Some(text.to_owned())).ok_or_else(|| {
        format!(
            "{text:?} is not the address of a collector; write its address for OTLP over gRPC, such as \
             \"http://127.0.0.1:4317\", or \"off\"; for TLS, put a collector beside this process"
        )
    })
}

/// Parses a share of all requests, with a resolution of a ten-thousandth of a percent.
pub fn sample(text: &str) -> Result<Sample, String> {
    let share = || {
        let (whole, rest) =
            text.strip_suffix('%')?.split_once('.').unwrap_or((text.strip_suffix('%')?, ""));
        let digits = |text: &str| text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
        (digits(whole) && digits(rest) && !whole.is_empty()).then_some(())?;
        let millionths = format!("{whole}{rest:0<4}").parse().ok()?;
        (millionths <= 1_000_000).then_some(Sample(millionths))
    };
    share().ok_or_else(|| {
        format!(
            "{text:?} is not a share of requests; write a percentage such as \"1%\" or \"0.05%\""
        )
    })
}

/// Splits a list: its values are separated by commas.
pub fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

pub fn networks(text: &str) -> Result<ByIp, String> {
    ByIp::try_trusting(list(text)).map_err(|error| error.to_string())
}

pub fn boolean(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text:?} is neither true nor false; write one of them"))
}

/// Parses one of a few words.
pub fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(word, _)| *word == text);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let words: Vec<String> = choices.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        format!("{text:?} is none of {}; write one of these", words.join(", "))
    })
}

/// Parses a whole number from 1 up.
pub fn count<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let count = text.replace('_', "").parse().ok().filter(|count| *count > 0);
    count.and_then(|count| T::try_from(count).ok()).ok_or_else(|| {
        format!("{text:?} is not a count; write a whole number from 1 up, such as 1_000_000")
    })
}

pub fn duration(text: &str) -> Result<Duration, String> {
    let in_ms = |digits: &str, factor: u64| digits.parse::<u64>().ok()?.checked_mul(factor);
    let ms = match text.strip_suffix("ms") {
        Some(digits) => in_ms(digits, 1),
        None => text.strip_suffix('s').and_then(|digits| in_ms(digits, 1_000)),
    };
    let ms = ms.filter(|ms| (1..=DURATION_MAX_MS).contains(ms));
    ms.map(Duration::from_millis).ok_or_else(|| {
        format!("{text:?} is not a time from 1ms to 60s; write for example \"25ms\"")
    })
}

/// The longest time that a setting may name: no caller waits longer for a decision.
const DURATION_MAX_MS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_ip_address_and_a_port() {
        assert_eq!(address("localhost:8080"), Ok(Some((Ipv4Addr::LOCALHOST, 8080).into())));
        assert_eq!(address("off"), Ok(None));
        assert!(address("[::1]:0").is_ok());
        for text in [
            "",
            "8080",
            ":8080",
            "127.0.0.1",
            "127.0.0.1:65536",
            "example.com:80",
            "http://127.0.0.1:1",
        ] {
            assert!(address(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_duration_has_a_unit() {
        assert_eq!(duration("25ms"), Ok(Duration::from_millis(25)));
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        for text in ["", "25", "0ms", "61s", "-1s", "1.5s", "ms", "1m", "18446744073709551615s"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_count_is_above_zero_and_may_be_grouped() {
        assert_eq!(count("1_000_000"), Ok(1_000_000_usize));
        for text in ["", "0", "-1", "1e6", "many", "4_294_967_296"] {
            assert!(count::<u32>(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_share_is_a_percentage_of_all_requests() {
        let of = |text: &str| sample(text).map(|sample| sample.0).ok();
        assert_eq!(of("1%"), Some(10_000));
        assert_eq!(of("100%"), Some(1_000_000));
        assert_eq!(of("0.05%"), Some(500));
        assert_eq!(of("0%"), Some(0));
        for text in ["", "%", "1", "-1%", "100.0001%", "1.00001%", ".5%", "1e2%", "1.2.3%", "+1%"] {
            assert_eq!(of(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_collector_is_an_address_without_tls_path_or_password() {
        assert_eq!(collector("off"), Ok(None));
        assert!(matches!(collector("http://localhost:4317/"), Ok(Some(_))));
        for text in
            ["", "localhost:4317", "https://c:4317", "http://", "http://a:b@c", "http://c/v1"]
        {
            assert!(collector(text).is_err(), "{text:?}");
        }
    }
}
