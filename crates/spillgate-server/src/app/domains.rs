//! Decides which domains are answered, by one rule for every listener.

use std::fmt;

use spillgate::Request;

use super::App;
use crate::config::Domains;

/// A domain that is not answered.
#[derive(Debug)]
pub(crate) struct UnknownDomain(String);

impl App {
    /// Checks whether requests of this domain are answered.
    pub(crate) fn require_domain(&self, domain: &str) -> Result<(), UnknownDomain> {
        let known = self.domains == Domains::Open || self.limiter().policy().has_domain(domain);
        if known { Ok(()) } else { Err(UnknownDomain(domain.to_owned())) }
    }

    /// Checks whether a request is answered. An inline limit needs no rule, so it has no domain to check.
    pub(crate) fn require_domain_of(&self, request: &Request<'_>) -> Result<(), UnknownDomain> {
        match request.inline_limit() {
            None => self.require_domain(request.domain()),
            Some(_) => Ok(()),
        }
    }
}

impl fmt::Display for UnknownDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownDomain(domain) = self;
        write!(
            f,
            "no rule has the domain {domain:?}, and server.domains is \"known\"; correct the \
             domain, or write a rule for it"
        )
    }
}
