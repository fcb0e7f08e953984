// SPDX-License-Identifier: Apache-2.0
//! Members of a set, whatever their type.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Serialize, de::DeserializeOwned};
use steersman_cache::{Object, Resource};

use crate::{
    ChildError, ChildRules, Readiness,
    children::{ChildId, Children, Desired, Settled},
};

/// A member of a set.
pub(crate) trait Member: Send + Sync {
    /// Kind of the member. Its scope is unknown for a dynamic kind.
    fn resource(&self) -> &Resource;

    fn metadata(&self) -> &ObjectMeta;

    /// True for kinds that might not be installed.
    fn is_optional(&self) -> bool;

    /// Creates the object or restores its fields.
    fn settle<'a>(
        &'a self,
        members: &'a Children,
        id: &'a ChildId,
    ) -> BoxFuture<'a, Result<Settled, ChildError>>;

    /// Returns the desired fields.
    fn desired(&self, members: &Children, id: &ChildId) -> Result<Desired, ChildError>;

    /// Returns the readiness by the function that user code passed, if it passed one.
    fn own_readiness(&self, live: &Arc<Object>) -> Option<Readiness>;
}

type IsReady<C> = Box<dyn Fn(&C) -> bool + Send + Sync>;

/// A member of a type.
pub(crate) struct TypedMember<C> {
    pub(crate) resource: Resource,
    pub(crate) object: C,
    pub(crate) rules: ChildRules<C>,
    pub(crate) ready_if: Option<IsReady<C>>,
    pub(crate) is_optional: bool,
}

impl<C> Member for TypedMember<C>
where
    C: kube::Resource + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    fn resource(&self) -> &Resource {
        &self.resource
    }

    fn metadata(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn is_optional(&self) -> bool {
        self.is_optional
    }

    fn settle<'a>(
        &'a self,
        members: &'a Children,
        id: &'a ChildId,
    ) -> BoxFuture<'a, Result<Settled, ChildError>> {
        Box::pin(members.reconcile_as(id, &self.object, &self.rules))
    }

    fn desired(&self, members: &Children, id: &ChildId) -> Result<Desired, ChildError> {
        members.desired(id, &self.object, &self.rules)
    }

    fn own_readiness(&self, live: &Arc<Object>) -> Option<Readiness> {
        let is_ready = self.ready_if.as_ref()?;
        Some(match live.decoded::<C>() {
            Ok(live) if is_ready(&live) => Readiness::Ready,
            Ok(_) => Readiness::in_progress("NotReady", "not ready yet"),
            Err(error) => Readiness::failed("Undecodable", error.to_string()),
        })
    }
}
