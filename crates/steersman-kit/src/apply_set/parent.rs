// SPDX-License-Identifier: Apache-2.0
//! Deletion of a set with its parent.

use std::future::Future;

use k8s_openapi::{ClusterResourceScope, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::Resource as _;
use steersman_cache::Resource;
use steersman_runtime::{BoxError, Context, Undecodable};

use super::{ApplySetError, InventoryIn, run::SetRun};
use crate::{
    ChildMemory, Children, Cleaned, FinalizerMode, KindList, KindReconciler, NoCleanup, RunsCleanup, Work,
};

/// A reconciler whose objects have apply sets. Required by `type Finalizer = DeletesApplySet`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has `type Finalizer = DeletesApplySet`, but names no finalizer",
    label = "`ApplySetParent` is not implemented for `{Self}`",
    note = "add `impl ApplySetParent for {Self}`"
)]
pub trait ApplySetParent: KindReconciler {
    /// Name of the finalizer, such as `example.com/members`. Each controller of a kind has its own.
    const FINALIZER: &'static str;

    /// Object that stores the inventory of the set. Default: the parent.
    const INVENTORY: InventoryIn = InventoryIn::parent();

    /// Cleans up resources outside of the cluster, before the members are deleted. Default: nothing.
    fn cleanup(
        &self,
        object: &Self::Kind,
        work: &mut Work<Self>,
    ) -> impl Future<Output = Result<Cleaned, BoxError>> + Send {
        let _ = (object, work);
        async { Ok(Cleaned::Done) }
    }
}

/// A finalizer that delays deletion of an object until the members of its apply set are deleted; for `type Finalizer`. Requires
/// [`ApplySetParent`].
#[derive(Debug)]
#[non_exhaustive]
pub enum DeletesApplySet {}

/// Finalizer modes with which the members of an apply set do not outlive their parent: [`DeletesApplySet`], and every mode for
/// cluster-scoped parents, because all members have a controller reference to them.
#[diagnostic::on_unimplemented(
    message = "members of an apply set of `{R}` could outlive their parent",
    label = "a namespaced object cannot own objects in other namespaces, so the garbage collector does not delete them",
    note = "set `type Finalizer = DeletesApplySet`, and implement `ApplySetParent`"
)]
pub trait DeletesMembers<R: KindReconciler>: FinalizerMode<R> {
    /// Object that stores the inventory of the set.
    const INVENTORY: InventoryIn = InventoryIn::parent();
}

impl<R: ApplySetParent> DeletesMembers<R> for DeletesApplySet {
    const INVENTORY: InventoryIn = <R as ApplySetParent>::INVENTORY;
}

#[diagnostic::do_not_recommend]
impl<R: KindReconciler<Kind: kube::Resource<Scope = ClusterResourceScope>>> DeletesMembers<R> for NoCleanup {}

#[diagnostic::do_not_recommend]
impl<R> DeletesMembers<R> for RunsCleanup
where
    R: KindReconciler<Kind: kube::Resource<Scope = ClusterResourceScope>>,
    Self: FinalizerMode<R>,
{
}

impl<R: ApplySetParent> FinalizerMode<R> for DeletesApplySet {
    const NAME: Option<&'static str> = Some(R::FINALIZER);

    async fn cleanup(reconciler: &R, object: &R::Kind, work: &mut Work<R>) -> Result<Cleaned, BoxError> {
        match reconciler.cleanup(object, work).await? {
            Cleaned::Done => work.delete_apply_set(R::INVENTORY).await?,
            cleaned => return Ok(cleaned),
        }
        Ok(Cleaned::Done)
    }

    async fn cleanup_undecodable(_: &R, object: &Undecodable, cx: &Context) -> Result<Cleaned, BoxError> {
        delete_undecodable::<R::Kind, R::Children>(object, R::INVENTORY, cx).await?;
        Ok(Cleaned::Done)
    }
}

/// Deletes the members of the set of a parent that cannot be decoded: only its metadata is needed.
pub(super) async fn delete_undecodable<K: crate::ChildKind, L: KindList>(
    parent: &Undecodable,
    place: InventoryIn,
    cx: &Context,
) -> Result<(), ApplySetError> {
    let (types, metadata) = (&parent.object().types, parent.object().meta());
    let known = Resource::of::<K>();
    let api_version = types
        .as_ref()
        .map_or_else(|| known.api_version(), |types| types.api_version.clone());
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let mut resource = Resource::new(known.group(), version, known.kind(), known.plural());
    if let Some(is_namespaced) = known.is_namespaced() {
        resource = resource.namespaced(is_namespaced);
    }
    let owner = OwnerReference {
        kind: known.kind().to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
        api_version,
    };
    let (key, memory) = (parent.key().clone(), ChildMemory::new());
    let children = Children::of_parts(owner, resource, key, cx, &memory);
    let watched = L::resources().into_iter().map(|(resource, _)| resource).collect();
    SetRun::new(&children, place, watched).delete().await?;
    Ok(())
}
