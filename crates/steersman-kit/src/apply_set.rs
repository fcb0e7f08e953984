// SPDX-License-Identifier: Apache-2.0
//! Apply sets: objects of any kinds and namespaces that a function generates from a parent.
//!
//! A [child](crate::Children) has a controller reference to its parent, which Kubernetes permits only within one namespace, and
//! towards cluster-scoped parents. An apply set has no such limit. It also deletes the objects that the function does not
//! generate any more. With [`managed`](crate::managed), call [`Work::apply_set`](crate::Work::apply_set). In every other
//! reconciler, use [`ApplySets`]. For a controller that is nothing but a function, use [`generating`](crate::generating()).
//!
//! # Guarantees
//! 1. The inventory of the set, its kinds and namespaces, is written before the first member is applied. An entry leaves it only
//!    after the server confirmed that the set has no members there. So a process that ends at any point leaves a state from
//!    which the next one reaches exactly the desired set, even if its code does not mention a kind any more.
//! 2. A member that left the set is deleted only if it has the label of the set, the uid of the parent, and either a controller
//!    reference to the parent or the label owned by the field manager of the set. A live read confirms that, and the deletion
//!    names uid and version of that read.
//! 3. If a member cannot be applied, the others are applied, and nothing is deleted.
//! 4. An object of someone else is never written and never deleted, as with children. It does not delay other members.
//! 5. Namespaces and CRDs are applied first and deleted last. Deletions follow all applies.
//! 6. A kind that is not installed, or cannot be listed or deleted, delays only itself.
//! 7. Objects to which a controller copied the labels of a member, or its annotations, are not deleted.
//! 8. A set that is as it should be costs no request.
//! 9. At most 8 members are written at the same time.
//! 10. All members have one field manager, which the controller uses for nothing else: that of the controller with the suffix
//!     `-applyset`.
//! 11. The members are deleted before the parent. Members with a controller reference to a cluster-scoped parent are left to the
//!     garbage collector if the reconciler has no [finalizer](crate::DeletesApplySet).
//!
//! # Labels and annotations
//! They are those of KEP-3659, so that `kubectl get --selector applyset.kubernetes.io/part-of=…` and similar tools find the
//! members. `kubectl apply --prune --applyset` refuses to change the set, because `applyset.kubernetes.io/tooling` names another
//! tool. In addition, each member has the annotation `applyset.steersman.dev/member`.
//!
//! # Limits
//! An object has the inventory of one set only: a second controller with a set for the same parent stores its inventory
//! [elsewhere](InventoryIn::config_map).

mod error;
mod generating;
mod inventory;
mod member;
pub(crate) mod names;
mod parent;
mod plan;
pub(crate) mod registry;
pub(crate) mod run;
mod sweep;

use std::{collections::HashSet, fmt, marker::PhantomData};

use kube::core::DynamicObject;
use steersman_cache::Resource;
use steersman_cluster::{ClusterName, ObjectExt};
use steersman_runtime::{Context, Handler, KnownKind, Request};

pub use self::{
    error::ApplySetError,
    generating::{Generating, generating},
    inventory::InventoryIn,
    parent::{ApplySetParent, DeletesApplySet, DeletesMembers},
    plan::{ApplyPlan, FieldChange, PlannedAction, PlannedChange},
    run::ApplyReport,
    sweep::PruneDelay,
};
use self::{
    member::{Member, TypedMember},
    run::SetRun,
};
use crate::{ChildKind, ChildMemory, ChildRules, Children, KindList, Lists};

/// Number of members that are written at the same time.
pub(crate) const AT_ONCE: usize = 8;

/// Objects that should exist for a parent. `L` is the list of their kinds.
///
/// A namespaced member without a namespace is in that of the parent.
#[must_use = "a set has an effect once it is applied"]
pub struct ApplySet<L> {
    pub(crate) members: Vec<Box<dyn Member>>,
    kinds: PhantomData<fn() -> L>,
}

impl<L: KindList> ApplySet<L> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self {
            members: Vec::new(),
            kinds: PhantomData,
        }
    }

    /// Adds an object.
    pub fn add<C: ChildKind, I>(&mut self, object: C) -> &mut Self
    where
        L: Lists<C, I>,
    {
        self.add_with(object, ChildRules::new())
    }

    /// Adds an object with rules for it, such as fields to [ignore](ChildRules::ignore).
    pub fn add_with<C: ChildKind, I>(&mut self, object: C, rules: ChildRules<C>) -> &mut Self
    where
        L: Lists<C, I>,
    {
        self.members.push(Box::new(TypedMember {
            resource: Resource::of::<C>(),
            object,
            rules,
            ready_if: None,
            is_optional: <L as Lists<C, I>>::OPTIONAL,
        }));
        self
    }

    /// Adds an object that is ready if this returns true. Default: the rules of kstatus; see [`readiness`](crate::readiness()).
    pub fn add_ready_if<C: ChildKind, I>(
        &mut self,
        object: C,
        is_ready: impl Fn(&C) -> bool + Send + Sync + 'static,
    ) -> &mut Self
    where
        L: Lists<C, I>,
    {
        self.members.push(Box::new(TypedMember {
            resource: Resource::of::<C>(),
            object,
            rules: ChildRules::new(),
            ready_if: Some(Box::new(is_ready)),
            is_optional: <L as Lists<C, I>>::OPTIONAL,
        }));
        self
    }

    /// Adds an object of a kind that is known at run time. With [`managed`](crate::managed), declare the kind with
    /// [`Managed::owns_dynamic`](crate::Managed::owns_dynamic), so that changes of the object reconcile the parent.
    pub fn add_dynamic(&mut self, resource: &Resource, object: DynamicObject) -> &mut Self {
        self.members.push(Box::new(TypedMember {
            resource: resource.clone(),
            object,
            rules: ChildRules::new(),
            ready_if: None,
            is_optional: false,
        }));
        self
    }

    /// Number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns true if the set has no objects. Applied, it deletes all its former members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Kinds of the list and of dynamic members.
    pub(crate) fn watched(&self) -> Vec<Resource> {
        let mut watched: Vec<Resource> = L::resources().into_iter().map(|(resource, _)| resource).collect();
        for member in &self.members {
            if !watched.contains(member.resource()) {
                watched.push(member.resource().clone());
            }
        }
        watched
    }
}

impl<L: KindList> Default for ApplySet<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L> fmt::Debug for ApplySet<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApplySet")
            .field("members", &self.members.len())
            .finish()
    }
}

/// The apply sets of all parents of a controller, for reconcilers without [`managed`](crate::managed). Clones share their state.
///
/// [`reconcile`](Self::reconcile) handles the whole life of a set: it adds a finalizer to the parent, applies and prunes, and
/// deletes the members when the parent is deleted.
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
/// use steersman_core::Action;
/// use steersman_kit::{ApplySet, ApplySets};
/// use steersman_runtime::{BoxError, Context, Controller, Request, kind, reconcile_fn};
///
/// async fn reconcile(request: Request, cx: Context, sets: ApplySets) -> Result<Action, BoxError> {
///     let Some(map) = cx.client().get::<ConfigMap>(request.key()).await? else {
///         sets.forget(&request);
///         return Ok(Action::await_change());
///     };
///     let mut set = ApplySet::<(Namespace,)>::new();
///     for name in map.data.iter().flatten().map(|(name, _)| name) {
///         let mut namespace = Namespace::default();
///         namespace.metadata.name = Some(name.clone());
///         set.add(namespace);
///     }
///     Ok(sets.reconcile(&*map, &cx, &set).await?.action())
/// }
///
/// let sets = ApplySets::new("example.com/namespaces");
/// let controller = Controller::of::<ConfigMap>("namespaces")
///     .watches(kind::<Namespace>(), sets.handler::<Namespace>());
/// let reconciler = reconcile_fn(move |request, cx| reconcile(request, cx, sets.clone()));
/// # let _ = (controller, reconciler);
/// ```
#[derive(Clone, Debug)]
pub struct ApplySets {
    memory: ChildMemory,
    finalizer: &'static str,
    place: InventoryIn,
}

impl ApplySets {
    /// Creates the state of a controller. The finalizer, such as `example.com/members`, delays the deletion of a parent until the
    /// members of its set are deleted. Each controller of a kind has its own.
    #[must_use]
    pub fn new(finalizer: &'static str) -> Self {
        Self {
            memory: ChildMemory::new(),
            finalizer,
            place: InventoryIn::parent(),
        }
    }

    /// Stores the inventories elsewhere. Default: on the parents.
    #[must_use]
    pub fn inventory_in(mut self, place: InventoryIn) -> Self {
        self.place = place;
        self
    }

    /// Applies the set of a parent and deletes the members that left it. If the parent is being deleted, deletes all members, and
    /// then removes the finalizer.
    ///
    /// # Errors
    /// When the inventory or a member cannot be written, or a member of a deleted parent cannot be deleted.
    ///
    /// # Cancel safety
    /// If dropped midway, the outcome of a write is unknown. The next reconcile continues.
    pub async fn reconcile<K: ChildKind, L: KindList>(
        &self,
        parent: &K,
        cx: &Context,
        set: &ApplySet<L>,
    ) -> Result<ApplyReport, ApplySetError> {
        let run = self.run(parent, cx, set)?;
        if parent.is_being_deleted() {
            let swept = run.delete().await?;
            cx.client().remove_finalizer(parent, self.finalizer).await?;
            return Ok(ApplyReport::of_deletion(&swept));
        }
        cx.client().add_finalizer(parent, self.finalizer).await?;
        let report = run.apply(&set.members).await?;
        let request = run.members.parent();
        let (mut named, mut tracked) = (HashSet::new(), self.memory.tracker.begin(request));
        for member in &report.members {
            named.insert(member.id.clone());
            if !member.is_live() {
                tracked.add_dynamic(&member.id.0, &member.id.1);
            }
        }
        self.memory.retain(request, &named);
        tracked.finish();
        report.into_result()
    }

    /// Computes the changes that [`reconcile`](Self::reconcile) would make, without writing.
    ///
    /// # Errors
    /// When a request fails.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn plan<K: ChildKind, L: KindList>(
        &self,
        parent: &K,
        cx: &Context,
        set: &ApplySet<L>,
    ) -> Result<ApplyPlan, ApplySetError> {
        self.run(parent, cx, set)?.plan(&set.members).await
    }

    /// Handler for a kind of members: enqueues the parent of a member that changed. Pass it to
    /// [`Builder::watches`](steersman_runtime::Builder::watches) for each kind.
    #[must_use]
    pub fn handler<C: KnownKind + 'static>(&self) -> impl Handler<C, Request> + use<C> {
        self.memory.handler::<C>()
    }

    /// Removes the state about a parent that was deleted.
    pub fn forget(&self, parent: &Request) {
        self.memory.forget(parent);
    }

    /// Removes the state about all parents in a cluster that was removed. Pass it to
    /// [`Builder::on_cluster_removed`](steersman_runtime::Builder::on_cluster_removed).
    pub fn forget_cluster(&self, cluster: &ClusterName) {
        self.memory.forget_cluster(cluster);
    }

    /// Name of the finalizer.
    pub(crate) fn finalizer(&self) -> &'static str {
        self.finalizer
    }

    pub(crate) fn memory(&self) -> &ChildMemory {
        &self.memory
    }

    pub(crate) fn place(&self) -> InventoryIn {
        self.place
    }

    fn run<K: ChildKind, L: KindList>(
        &self,
        parent: &K,
        cx: &Context,
        set: &ApplySet<L>,
    ) -> Result<SetRun, ApplySetError> {
        let children = Children::of(parent, cx, &self.memory)?;
        Ok(SetRun::new(&children, self.place, set.watched()))
    }
}
