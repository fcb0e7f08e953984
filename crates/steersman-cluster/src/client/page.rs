// SPDX-License-Identifier: Apache-2.0
//! Lists that the caller pages by hand.

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::de::DeserializeOwned;
use steersman_cache::Query;

use super::{
    KindClient,
    collection::{PAGE, Page},
    request::{RequestPlan, invalid},
};
use crate::Error;

/// One page of a list; from [`Client::list_page`](crate::Client::list_page).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListPage<K> {
    /// The objects.
    pub items: Vec<K>,
    /// The resource version of the list, the same on all of its pages. Watch from it to see all later changes.
    pub resource_version: String,
    /// The token of the next page, or `None` on the last page.
    pub continue_token: Option<String>,
    /// The number of objects after this page. The server does not report it for lists with a selector.
    pub remaining: Option<i64>,
}

impl<K: DeserializeOwned + Send + Sync + 'static> KindClient<K> {
    /// As [`Client::list_page`](crate::Client::list_page).
    ///
    /// # Errors
    /// As there.
    pub async fn list_page(&self, query: &Query, continue_token: Option<&str>) -> Result<ListPage<K>, Error> {
        let call = self.within("list", query);
        if query.has_index() {
            return Err(invalid(
                &call,
                "the server does not know the index; use `list`, or select by namespace, labels and fields",
            ));
        }
        let size = Some(query.limited())
            .filter(|limit| *limit < usize::MAX)
            .unwrap_or(PAGE);
        let [_, form] = self.forms();
        let plan = RequestPlan::of_collection(Method::GET, &call)?.accepting(form);
        let plan = self
            .client
            .paging(plan, query, size, continue_token.unwrap_or_default());
        let json = self.client.exchange(plan).await?;
        let (items, metadata) = Page::decode(&call, &json)?;
        Ok(ListPage::of(items, metadata))
    }
}

impl<K> ListPage<K> {
    fn of(items: Vec<K>, metadata: ListMeta) -> Self {
        Self {
            items,
            resource_version: metadata.resource_version.unwrap_or_default(),
            continue_token: metadata.continue_.filter(|token| !token.is_empty()),
            remaining: metadata.remaining_item_count,
        }
    }
}
