// SPDX-License-Identifier: Apache-2.0
//! Leader work that does not end after its lease was lost, for `/healthz`.

use std::{collections::BTreeMap, sync::Arc};

use steersman_core::Mutex;

use steersman_endpoints::{CheckError, RegistrationGuard};

/// Leases whose lost term has not ended in time. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overdue(Arc<Mutex<BTreeMap<String, String>>>);

impl Overdue {
    /// Reports a lease until the guard is dropped.
    pub(super) fn report(&self, lease: &str, reason: String) -> RegistrationGuard {
        self.0.lock().insert(lease.to_owned(), reason);
        let (list, lease) = (self.clone(), lease.to_owned());
        RegistrationGuard::new(move || drop(list.0.lock().remove(&lease)))
    }

    /// Check `leader-election` of `/healthz`. Only a restart ends work that cannot be cancelled.
    pub(crate) fn check(&self) -> Result<(), CheckError> {
        let all = self.0.lock();
        if all.is_empty() {
            return Ok(());
        }
        let all: Vec<String> = all
            .iter()
            .map(|(lease, reason)| format!("lease {lease}: {reason}"))
            .collect();
        Err(CheckError::public(all.join("; ")))
    }
}
