// SPDX-License-Identifier: Apache-2.0
//! A controller that is nothing but a function from a parent to objects.

use std::{fmt, marker::PhantomData, sync::Arc};

use steersman_cache::Resource;
use steersman_cluster::ObjectExt;
use steersman_core::{Action, ObjectKey};
use steersman_runtime::{BoxError, Context, Declarations, ObjectReconciler, Request, Undecodable};

use super::{ApplySet, ApplySets, InventoryIn, parent::delete_undecodable};
use crate::{ChildKind, KindList, managed::declare_children};

/// A reconciler of a function from a parent to objects; from [`generating`].
#[must_use = "a reconciler runs once it is passed to a controller"]
pub struct Generating<K, L, F> {
    function: F,
    sets: ApplySets,
    types: PhantomData<fn() -> (K, L)>,
}

/// Makes the reconciler of a controller from a function from a parent to an [apply set](ApplySet). The controller watches the kinds
/// of the list `L`.
///
/// The finalizer, such as `example.com/members`, delays the deletion of a parent until the members of its set are deleted.
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
/// use steersman_kit::{ApplySet, generating};
/// use steersman_runtime::{BoxError, Controller};
///
/// fn namespaces(map: &ConfigMap, set: &mut ApplySet<(Namespace,)>) -> Result<(), BoxError> {
///     for name in map.data.iter().flatten().map(|(name, _)| name) {
///         let mut namespace = Namespace::default();
///         namespace.metadata.name = Some(name.clone());
///         set.add(namespace);
///     }
///     Ok(())
/// }
///
/// let controller = Controller::of::<ConfigMap>("namespaces").labels("kind=namespaces");
/// let reconciler = generating("example.com/namespaces", namespaces);
/// # let _ = (controller, reconciler);
/// ```
pub fn generating<K, L, F>(finalizer: &'static str, function: F) -> Generating<K, L, F>
where
    K: ChildKind,
    L: KindList,
    F: Fn(&K, &mut ApplySet<L>) -> Result<(), BoxError> + Send + Sync + 'static,
{
    Generating {
        function,
        sets: ApplySets::new(finalizer),
        types: PhantomData,
    }
}

impl<K, L, F> Generating<K, L, F> {
    /// Stores the inventories elsewhere. Default: on the parents.
    pub fn inventory_in(mut self, place: InventoryIn) -> Self {
        self.sets = self.sets.inventory_in(place);
        self
    }
}

impl<K, L, F> ObjectReconciler<K> for Generating<K, L, F>
where
    K: ChildKind,
    L: KindList,
    F: Fn(&K, &mut ApplySet<L>) -> Result<(), BoxError> + Send + Sync + 'static,
{
    type Error = BoxError;

    fn declare(&self, declarations: &mut Declarations) {
        declare_children::<L>(declarations, self.sets.memory());
        // The finalizer and the inventory.
        declarations.permits(&Resource::of::<K>(), "", |parent| parent.verbs(["patch"]));
        let memory = self.sets.memory().clone();
        declarations.on_deleted_everywhere(move |cluster, key| {
            memory.forget(&Request::new(cluster.clone(), key.clone()));
        });
        let memory = self.sets.memory().clone();
        declarations.on_cluster_removed(move |cluster| memory.forget_cluster(cluster));
    }

    fn finalizer(&self) -> Option<&str> {
        Some(self.sets.finalizer())
    }

    async fn on_deleted(&self, key: ObjectKey, cx: Context) -> Result<Action, BoxError> {
        self.sets.forget(&Request::new(cx.cluster().name().clone(), key));
        Ok(Action::await_change())
    }

    async fn undecodable(&self, object: Undecodable, cx: Context) -> Result<Action, BoxError> {
        if !object.is_being_deleted() {
            return Err(object.into_error());
        }
        delete_undecodable::<K, L>(&object, self.sets.place(), &cx).await?;
        object.remove_finalizer(self.sets.finalizer(), &cx).await?;
        Ok(Action::await_change())
    }

    async fn reconcile(&self, object: Arc<K>, cx: Context) -> Result<Action, BoxError> {
        let mut set = ApplySet::new();
        // A function that fails must not keep an object from being deleted.
        if !object.is_being_deleted() {
            (self.function)(&object, &mut set)?;
        }
        let report = self.sets.reconcile(&*object, &cx, &set).await?;
        for (resource, key, reason) in report.not_applied() {
            tracing::warn!(kind = resource.kind(), %key, reason, "member of the apply set is not applied");
        }
        Ok(report.action())
    }
}

impl<K, L, F> fmt::Debug for Generating<K, L, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generating")
            .field("sets", &self.sets)
            .finish_non_exhaustive()
    }
}
