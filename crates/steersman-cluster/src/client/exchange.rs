// SPDX-License-Identifier: Apache-2.0
//! Sends the requests of a client, and adds the answers of writes to the cache.

use bytes::Bytes;
use kube::api::ValidationDirective;
use steersman_cache::Object;

use super::{
    Client, answer,
    deletion::WriteAnswer,
    request::{RequestPlan, invalid},
};
use crate::{Error, Operation};

/// The name of the executable is no default: it differs between builds, tests and releases, and each new name would
/// share the ownership of fields with the names before.
const NO_FIELD_MANAGER: &str = "the client has no field manager, by which the server records the owner of each field; \
    set a stable name with `ClusterBuilder::field_manager` or `Client::field_manager`";

impl Client {
    /// Sends a request and reads the whole answer.
    pub(super) async fn exchange(&self, plan: RequestPlan<'_>) -> Result<Bytes, Error> {
        let call = plan.call;
        let sent = self.0.transport.send(plan.request()?).await;
        let response = sent.map_err(|error| answer::unanswered(call, error))?;
        let read = answer::read(call, response).await;
        if read.as_ref().is_err_and(Error::is_absent) {
            self.0.cluster.mapper().forget(call.resource());
        }
        read
    }

    /// Sends a write that the server answers with an object, and adds that object to the cache.
    pub(super) async fn write(&self, plan: RequestPlan<'_>) -> Result<Bytes, Error> {
        let call = plan.call;
        let writes = &self.0.writes;
        let validation = writes.validation.as_ref().map_or("", ValidationDirective::as_str);
        let Some(field_manager) = &writes.field_manager else {
            return Err(invalid(call, NO_FIELD_MANAGER));
        };
        let plan = plan
            .with("fieldManager", &**field_manager)
            .with_if(writes.dry_run, "dryRun", "All")
            .with_if(!validation.is_empty(), "fieldValidation", validation);
        let json = self.exchange(plan).await?;
        self.wrote(call, &json);
        Ok(json)
    }

    pub(super) fn wrote(&self, call: &Operation, json: &[u8]) {
        // The answer to a write of a subresource can be an object of another kind with the same name.
        let kind = Some(call.resource().kind());
        let Some(answer) = WriteAnswer::read(json).filter(|answer| answer.kind() == kind) else {
            return;
        };
        if self.0.writes.dry_run {
            return;
        }
        if let (Some(observer), Ok(object)) = (&self.0.observer, Object::from_slice(json)) {
            observer(call.resource(), &object);
        }
        if answer.was_last() {
            self.is_gone(call, &answer);
        } else if let Err(error) = self.0.cluster.cache().wrote(call.resource(), json) {
            tracing::debug!(%call, %error, "answer to a write is not an object; not cached");
        }
    }
}
