// SPDX-License-Identifier: Apache-2.0
//! Verbs of one kind that act on several objects.

use std::sync::Arc;

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::DeleteParams;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use steersman_cache::{Object, Query, ReadError};

use super::{
    Client, KindClient, answer,
    kind::{encode, unreadable},
    request::{RequestPlan, invalid},
};
use crate::{Error, Operation};

/// Number of objects that one page of a list requests.
pub(super) const PAGE: usize = 500;

/// One page of a list.
#[derive(Deserialize)]
#[serde(bound = "K: DeserializeOwned", rename_all = "camelCase")]
pub(super) struct Page<K> {
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    metadata: Option<ListMeta>,
    /// Go encodes an empty list as `null`. An answer without this field is not a list.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<K>>,
}

impl<K: DeserializeOwned> Page<K> {
    /// Decodes the items and the metadata of a list.
    pub(super) fn decode(call: &Operation, json: &[u8]) -> Result<(Vec<K>, ListMeta), Error> {
        let page: Self = answer::decode(call, json)?;
        let (api_version, kind) = (
            page.api_version.unwrap_or_default(),
            page.kind.unwrap_or_default(),
        );
        if !call.resource().may_list_as(&api_version, &kind) {
            return Err(Error::Decode {
                call: Box::new(call.clone()),
                type_name: std::any::type_name::<K>(),
                path: "kind".to_owned(),
                reason: format!(
                    "the answer is of kind `{kind}`, which is not a list of {}",
                    call.resource()
                ),
            });
        }
        Ok((page.items.unwrap_or_default(), page.metadata.unwrap_or_default()))
    }
}

impl<K: DeserializeOwned + Send + Sync + 'static> KindClient<K> {
    /// As [`Client::list`].
    ///
    /// # Errors
    /// As there.
    pub async fn list(&self, query: &Query) -> Result<Vec<Arc<K>>, Error> {
        let call = || self.within("list", query);
        let namespace = query.wanted_namespace().unwrap_or_default();
        if let Some(view) = self.view(namespace, call).await? {
            let found = view.list_as(query);
            return found.map_err(|error| unreadable(&call(), ReadError::Decode(error)));
        }
        let [_, form] = self.forms();
        self.client.list_live(&call(), query, form).await
    }

    /// As [`Client::delete_collection`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_collection(&self, query: &Query, mut options: DeleteParams) -> Result<(), Error> {
        let call = self.within("delete all", query);
        if query.has_index() || query.limited() < usize::MAX {
            return Err(invalid(
                &call,
                "the server selects by namespace, labels and fields only; leave out index and limit",
            ));
        }
        options.dry_run |= self.client.0.writes.dry_run;
        let body = encode(&call, &options)?;
        let plan = RequestPlan::of_collection(Method::DELETE, &call)?.carrying_json(body);
        self.client.exchange(self.client.selecting(plan, query)).await?;
        Ok(())
    }

    pub(super) fn within(&self, verb: &'static str, query: &Query) -> Operation {
        Operation::within(verb, &self.resource, query.wanted_namespace().unwrap_or_default())
    }
}

impl Client {
    /// Lists the objects that a query selects from the server, page by page.
    pub(super) async fn list_live<K>(
        &self,
        call: &Operation,
        query: &Query,
        form: &'static str,
    ) -> Result<Vec<Arc<K>>, Error>
    where
        K: DeserializeOwned,
    {
        let listed = self.pages(call, query, form, PAGE).await;
        match listed {
            // The server has expired the continue token: list everything in one request.
            Err(error) if error.is_expired() => self.pages(call, query, form, 0).await,
            listed => listed,
        }
    }

    async fn pages<K>(
        &self,
        call: &Operation,
        query: &Query,
        form: &'static str,
        size: usize,
    ) -> Result<Vec<Arc<K>>, Error>
    where
        K: DeserializeOwned,
    {
        let (mut found, mut next) = (Vec::new(), String::new());
        let wanted = query.limited();
        loop {
            // The server does not know the index, so the query's limit cannot limit the page.
            let room = if query.has_index() {
                usize::MAX
            } else {
                wanted - found.len()
            };
            let size = if size == 0 && room < usize::MAX {
                room
            } else {
                size.min(room)
            };
            let plan = RequestPlan::of_collection(Method::GET, call)?.accepting(form);
            let json = self.exchange(self.paging(plan, query, size, &next)).await?;
            let metadata = if query.has_index() {
                let (items, metadata) = Page::<Value>::decode(call, &json)?;
                for item in items {
                    found.extend(indexed(call, query, &item)?);
                }
                metadata
            } else {
                let (items, metadata) = Page::<K>::decode(call, &json)?;
                found.extend(items.into_iter().map(Arc::new));
                metadata
            };
            next = metadata.continue_.unwrap_or_default();
            if next.is_empty() || found.len() >= wanted {
                found.truncate(wanted);
                return Ok(found);
            }
        }
    }
}

impl Client {
    /// Adds the parameters of one page of a list: selectors, resource version, size (zero for no limit), continue token.
    pub(super) fn paging<'a>(
        &self,
        plan: RequestPlan<'a>,
        query: &Query,
        size: usize,
        next: &str,
    ) -> RequestPlan<'a> {
        let version = &self.0.reads.resource_version;
        // Later pages show the same resource version as the first page.
        let is_of_version = next.is_empty() && !version.is_empty();
        self.selecting(plan, query)
            .with_if(is_of_version, "resourceVersion", version)
            .with_if(is_of_version, "resourceVersionMatch", "NotOlderThan")
            .with_if(size > 0, "limit", &size.to_string())
            .with_if(!next.is_empty(), "continue", next)
    }

    /// Adds the selectors of a query and of this client, as far as a server supports them.
    fn selecting<'a>(&self, plan: RequestPlan<'a>, query: &Query) -> RequestPlan<'a> {
        let (labels, fields) = (query.label_selector(), &self.0.reads.fields);
        plan.with_if(!labels.selects_all(), "labelSelector", &labels.to_string())
            .with_if(!fields.is_empty(), "fieldSelector", fields)
    }
}

/// Decodes an item if its index values match the query.
fn indexed<K: DeserializeOwned>(
    call: &Operation,
    query: &Query,
    item: &Value,
) -> Result<Option<Arc<K>>, Error> {
    let json = encode(call, item)?;
    let object = Object::from_slice(&json).ok().map(Arc::new);
    match object.filter(|object| query.matches(object)) {
        Some(_) => Ok(Some(Arc::new(answer::decode(call, &json)?))),
        None => Ok(None),
    }
}
