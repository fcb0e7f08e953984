// SPDX-License-Identifier: Apache-2.0
//! Verbs of subresources such as `scale`, `eviction` and `token`.

use http::Method;
use kube::api::Patch;
use serde::{Serialize, de::DeserializeOwned};
use steersman_core::ObjectKey;

use super::{KindClient, answer, kind::encode, request::RequestPlan};
use crate::{Error, Operation};

impl<K: DeserializeOwned + Send + Sync + 'static> KindClient<K> {
    /// As [`Client::get_subresource`](crate::Client::get_subresource).
    ///
    /// # Errors
    /// As there.
    pub async fn get_subresource<S>(&self, key: &ObjectKey, name: &str) -> Result<S, Error>
    where
        S: DeserializeOwned,
    {
        let call = self.on("get", key).subresource_of(name);
        let json = self
            .client
            .exchange(RequestPlan::of_object(Method::GET, &call)?)
            .await?;
        answer::decode(&call, &json)
    }

    /// As [`Client::create_subresource`](crate::Client::create_subresource).
    ///
    /// # Errors
    /// As there.
    pub async fn create_subresource<S>(
        &self,
        key: &ObjectKey,
        name: &str,
        body: &impl Serialize,
    ) -> Result<S, Error>
    where
        S: DeserializeOwned,
    {
        let call = self.on("create", key).subresource_of(name);
        self.sent(Method::POST, &call, body).await
    }

    /// As [`Client::update_subresource`](crate::Client::update_subresource).
    ///
    /// # Errors
    /// As there.
    pub async fn update_subresource<S>(
        &self,
        key: &ObjectKey,
        name: &str,
        body: &impl Serialize,
    ) -> Result<S, Error>
    where
        S: DeserializeOwned,
    {
        let call = self.on("update", key).subresource_of(name);
        self.sent(Method::PUT, &call, body).await
    }

    /// As [`Client::patch_subresource`](crate::Client::patch_subresource).
    ///
    /// # Errors
    /// As there.
    pub async fn patch_subresource<S>(
        &self,
        key: &ObjectKey,
        name: &str,
        patch: &Patch<impl Serialize>,
    ) -> Result<S, Error>
    where
        S: DeserializeOwned,
    {
        let call = self.on("patch", key).subresource_of(name);
        self.patched(&call, patch).await
    }

    /// As [`Client::apply_subresource`](crate::Client::apply_subresource).
    ///
    /// # Errors
    /// As there.
    pub async fn apply_subresource<S>(
        &self,
        key: &ObjectKey,
        name: &str,
        body: &impl Serialize,
    ) -> Result<S, Error>
    where
        S: DeserializeOwned,
    {
        let call = self.on("apply", key).subresource_of(name);
        self.patched(&call, &Patch::Apply(body)).await
    }

    async fn sent<S: DeserializeOwned>(
        &self,
        method: Method,
        call: &Operation,
        body: &impl Serialize,
    ) -> Result<S, Error> {
        let plan = RequestPlan::of_object(method, call)?.carrying_json(encode(call, body)?);
        let json = self.client.write(plan).await?;
        answer::decode(call, &json)
    }
}
