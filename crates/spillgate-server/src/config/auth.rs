//! `[server.auth]`: the attributes that the forward-auth API takes from a request, and the status of its denials.

use hyper::StatusCode;
use hyper::header::HeaderName;

use super::{Problem, value};
use crate::bounds::{ATTRIBUTES_MAX, NAME_MAX};

/// The settings of the forward-auth API.
#[derive(Clone)]
pub(crate) struct Auth {
    pub(crate) original: Original,
    /// The headers that become attributes.
    pub(crate) headers: Vec<HeaderName>,
    /// The query parameters that become attributes.
    pub(crate) query: Vec<String>,
    /// The status of denials, in place of every other but 403.
    pub(crate) deny_status: Option<StatusCode>,
}

/// The one source of method, host and URI. The others are ignored, because clients can forge them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "they are called as the setting's values are")]
pub(crate) enum Original {
    /// `X-Forwarded-Method`, `-Host` and `-Uri`: Traefik, Caddy.
    XForwarded,
    /// `X-Original-Method`, `-Host` and `-URI`: nginx.
    XOriginal,
    /// The request itself, with its path after `/v1/auth`: Envoy's ext_authz.
    Request,
}

impl Default for Auth {
    fn default() -> Self {
        Auth {
            original: Original::XForwarded,
            headers: Vec::new(),
            query: Vec::new(),
            deny_status: None,
        }
    }
}

impl Auth {
    /// Returns the attributes that a request may have.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        let headers = self.headers.iter().map(HeaderName::as_str);
        OWN_ATTRIBUTES.into_iter().chain(headers).chain(self.query.iter().map(String::as_str))
    }

    /// Returns a problem if two settings name the same attribute, since a client could then choose its value, or if
    /// there are too many attributes.
    pub fn contradiction(&self) -> Option<Problem> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.attributes() {
            if names.contains(&name) {
                let message = format!("{name:?} is an attribute already; leave one of them out");
                return Some(Problem::of_setting("server.auth", message));
            }
            names.push(name);
        }
        let message = format!(
            "{} headers and query parameters; a request has at most {ATTRIBUTES_MAX} attributes",
            names.len() - OWN_ATTRIBUTES.len()
        );
        (names.len() > ATTRIBUTES_MAX).then(|| Problem::of_setting("server.auth", message))
    }
}

impl Original {
    pub fn named(text: &str) -> Result<Original, String> {
        match text {
            "x-forwarded" => Ok(Original::XForwarded),
            "x-original" => Ok(Original::XOriginal),
            "request" => Ok(Original::Request),
            _ => Err(format!(
                "{text:?} is not a place of the original request; write \"x-forwarded\" (Traefik, Caddy), \"x-original\" \
                 (nginx) or \"request\" (Envoy's ext_authz)"
            )),
        }
    }
}

pub fn headers(text: &str) -> Result<Vec<HeaderName>, String> {
    let header = |name: &str| {
        let wrong =
            format!("{name:?} is not the name of a header; write a name such as \"x-api-key\"");
        name.parse().ok().filter(|_| name.len() <= NAME_MAX).ok_or(wrong)
    };
    value::list(text).map(header).collect()
}

pub fn parameters(text: &str) -> Result<Vec<String>, String> {
    let parameter = |name: &str| match name.len() {
        1..=NAME_MAX => Ok(name.to_owned()),
        length => Err(format!("a name of {length} bytes; names have at most {NAME_MAX}")),
    };
    value::list(text).map(parameter).collect()
}

/// Parses the status of a denial. Below 400 a proxy would take it for an admission.
pub(crate) fn deny_status(text: &str) -> Result<StatusCode, String> {
    let status = text.parse().ok().and_then(|code| StatusCode::from_u16(code).ok());
    status.filter(|status| (400..600).contains(&status.as_u16())).ok_or_else(|| {
        format!("{text:?} is not the status of a denial; write one from 400 to 599, such as 403")
    })
}

/// The attributes of every request to the forward-auth API.
const OWN_ATTRIBUTES: [&str; 4] = ["ip", "method", "host", "path"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deny_status_is_a_status_from_400_to_599() {
        assert_eq!(deny_status("403"), Ok(StatusCode::FORBIDDEN));
        for text in ["", "200", "302", "399", "600", "forbidden", "0403x"] {
            assert!(deny_status(text).is_err(), "{text:?}");
        }
    }
}
