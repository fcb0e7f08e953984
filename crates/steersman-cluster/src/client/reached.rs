// SPDX-License-Identifier: Apache-2.0
//! Waits until the cache has reached a resource version.

use std::time::Duration;

use steersman_cache::{ReadError, Revision};

use super::{KindClient, kind::unreadable};
use crate::{Error, Operation};

impl<K> KindClient<K> {
    /// As [`Client::wait_for_revision`](crate::Client::wait_for_revision).
    ///
    /// # Errors
    /// As there.
    pub async fn wait_for_revision(&self, namespace: &str, resource_version: &str) -> Result<(), Error> {
        let call = || Operation::within("wait for", &self.resource, namespace);
        self.client.check_open(call)?;
        if self.client.is_live_for(&self.resource) {
            return Ok(());
        }
        let (reader, limit) = (&self.client.0.reader, self.client.0.transport.timeout());
        let revision = Revision::new(resource_version);
        let reached = reader.reached(&self.resource, namespace, self.wanted, &revision);
        let clock = self.client.0.cluster.context().clock();
        let timeout = async {
            match limit {
                Some(limit) => {
                    clock.sleep_until(clock.now() + limit).await;
                    limit
                }
                None => std::future::pending::<Duration>().await,
            }
        };
        tokio::select! {
            biased;
            reached = reached => reached.map_err(|source| unreadable(&call(), source)),
            limit = timeout => Err(unreadable(&call(), ReadError::NotReached {
                resource: self.resource.clone(),
                revision: revision.clone(),
                limit,
            })),
        }
    }
}
