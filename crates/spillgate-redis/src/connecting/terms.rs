//! The terms of a call to a shard.

use std::sync::Arc;

use super::fingerprint::Instance;
use super::link::Redirect;
use crate::calls::nonces::Nonces;
use crate::store::OnStateLoss;
use crate::time::{Clock, Deadline};

/// The terms of one call to a shard.
#[derive(Clone, Copy, Debug)]
pub struct CallTerms<'a> {
    pub settings: &'a Arc<CallSettings>,
    pub deadline: Deadline,
    pub redirect: Redirect,
}

/// Settings and state that all calls of this instance share.
#[derive(Debug)]
pub struct CallSettings {
    /// A clock that a test passes in; scripts read the store's if it is absent.
    pub given_clock: Option<Clock>,
    pub nonces: Nonces,
    pub on_state_loss: OnStateLoss,
    pub instance: Instance,
}
