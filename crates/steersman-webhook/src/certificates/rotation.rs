// SPDX-License-Identifier: Apache-2.0
//! Decides the next step of the CA. Nothing here reads a clock or sends a request.

use std::time::SystemTime;

use super::{
    CLOCK_SKEW, Managed,
    authority::{Authority, CaCert, CertificateError},
    secret::{CaState, trust},
};

/// The Secret as the leader finds it.
#[derive(Debug)]
pub(crate) enum Found {
    /// There is no Secret.
    Absent,
    /// The Secret has no usable CA, for this reason.
    Invalid(String),
    Valid(Box<CaState>),
}

/// The bundles on the registration objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    /// One bundle for each webhook that is registered, empty if it has none.
    pub(crate) bundles: Vec<Vec<CaCert>>,
}

/// A change of the state, with the reason for the log.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) state: CaState,
    pub(crate) reason: String,
}

impl Published {
    fn contain(&self, cert: &CaCert) -> bool {
        self.bundles.iter().all(|bundle| bundle.contains(cert))
    }
}

/// Returns the next state, or None if there is nothing to do now.
pub(crate) fn plan(
    name: &str,
    now: SystemTime,
    found: &Found,
    published: &Published,
    settings: &Managed,
) -> Result<Option<Step>, CertificateError> {
    let generate = || Authority::generate(name, now, settings.ca_lifetime);
    let state = match found {
        Found::Absent => return recover(generate()?, now, published, "there is no CA Secret").map(Some),
        Found::Invalid(reason) => return recover(generate()?, now, published, reason).map(Some),
        Found::Valid(state) => state,
    };
    let signs = |authority: &Option<Authority>| {
        let cert = authority.as_ref().map(Authority::cert);
        cert.is_some_and(|cert| !cert.is_expired(now))
    };
    if !signs(&state.signer) && !signs(&state.next) {
        return recover(generate()?, now, published, "the CA has expired").map(Some);
    }
    let mut state = CaState::clone(state);
    let step = |state, reason: &str| {
        let reason = reason.to_owned();
        Ok(Some(Step { state, reason }))
    };
    if let Some(next) = state.next.take() {
        let is_published = published.contain(next.cert());
        match state.published_at {
            None if is_published => {
                state.next = Some(next);
                state.published_at = Some(now);
                step(state, "the next CA is published")
            }
            Some(_) if !is_published => {
                state.next = Some(next);
                state.published_at = None;
                step(state, "the next CA is no longer published")
            }
            Some(since) if now >= since + settings.propagation_delay => {
                state.signer = Some(next);
                state.published_at = None;
                state.switched_at = Some(now);
                step(state, "the next CA signs from now on")
            }
            _ => Ok(None),
        }
    } else if let Some(signer) = state.signer.as_ref().map(|signer| signer.cert().clone()) {
        if state.is_rotation_requested || now >= signer.renew_at() {
            let next = generate()?;
            trust(&mut state.trusted, next.cert());
            state.next = Some(next);
            state.is_rotation_requested = false;
            return step(state, "rotating the CA");
        }
        if state.trusted.len() == 1 {
            return Ok(None);
        }
        let Some(switched_at) = state.switched_at else {
            // The switch can have been a moment ago.
            state.switched_at = Some(now);
            return step(state, "the time of the last switch is unknown: it counts as now");
        };
        // A leaf that was signed at the last moment before the switch has expired, wherever the clocks are.
        if now >= switched_at + settings.leaf_lifetime + CLOCK_SKEW {
            state.trusted.retain(|cert| *cert == signer);
            return step(state, "dropping CAs whose leaves have expired");
        }
        Ok(None)
    } else {
        Ok(None)
    }
}

/// Begins with a new CA. If another one is published, its leaves can be in use: the new CA is published first.
fn recover(
    fresh: Authority,
    now: SystemTime,
    published: &Published,
    reason: &str,
) -> Result<Step, CertificateError> {
    let mut trusted = vec![fresh.cert().clone()];
    let former = published
        .bundles
        .iter()
        .flatten()
        .filter(|cert| !cert.is_expired(now));
    former.for_each(|cert| trust(&mut trusted, cert));
    let is_first = trusted.len() == 1;
    let (signer, next) = if is_first {
        (Some(fresh), None)
    } else {
        (None, Some(fresh))
    };
    Ok(Step {
        state: CaState {
            signer,
            next,
            trusted,
            published_at: None,
            switched_at: is_first.then_some(now),
            is_rotation_requested: false,
        },
        reason: format!("creating a new CA: {reason}"),
    })
}

#[cfg(test)]
mod tests;
