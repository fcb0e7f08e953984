// SPDX-License-Identifier: Apache-2.0
//! Children: objects that a parent creates and controls. The stage is usable with every reconciler.
//!
//! # Guarantees
//! 1. A missing child is created with a controller reference to its parent. A create never overwrites: the server rejects it if
//!    the name is taken.
//! 2. An object that another object controls, or no object, is foreign. It is never written; ownership is the uid of the
//!    controller reference, not a name. A live read confirms it first, so that a stale cache does not look like a foreign object.
//! 3. The parent is reconciled when the foreign object changes or is deleted.
//! 4. The fields that the parent sets are restored after a change by another client. Fields that it does not set are kept. A
//!    field that it does not set any more is removed, also if the create had set it.
//! 5. A child is written only if its desired fields changed, or if another client changed one of them: not for defaults of the
//!    server, nor for changes of admission webhooks, nor for changes of its status.
//! 6. Every later write names the uid of the child: it never hits an object that replaced it.
//! 7. A child that is being deleted is not written. It is created again when it is gone. A child of a former parent of the same
//!    name counts as one that is being deleted.
//! 8. After a failover, a child is applied at most once.
//!
//! # Limits
//! A field that is [ignored](ChildRules::ignore) only since a later version of the operator is removed once, unless another
//! client has set it meanwhile.

mod creation;
mod desired;
mod error;
mod memory;
mod observation;
mod ownership;
mod rules;

use std::{fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    api::{DeleteParams, Preconditions},
    core::DynamicObject,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use steersman_cache::{Object, ObjectDetail, Resource};
use steersman_cluster::{Client, Cluster, Error, KindClient, ObjectExt, ResourceQuery};
use steersman_core::ObjectKey;
use steersman_runtime::{Context, KnownKind, Request};

pub(crate) use self::{desired::Desired, memory::ChildId, ownership::Ownership};
use self::{desired::describe, ownership::Relation};
pub use self::{error::ChildError, memory::ChildMemory, rules::ChildRules};
use crate::{ChildKind, projection};

/// The children of one parent, in one reconcile.
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
/// use steersman_core::Action;
/// use steersman_kit::{ChildError, ChildMemory, ChildRules, Children};
/// use steersman_runtime::Context;
///
/// async fn reconcile(map: &ConfigMap, cx: &Context, memory: &ChildMemory) -> Result<Action, ChildError> {
///     let children = Children::of(map, cx, memory)?;
///     let mut secret = Secret::default();
///     secret.metadata.name = map.metadata.name.clone();
///     children.reconcile(secret, &ChildRules::new()).await?;
///     Ok(Action::await_change())
/// }
/// ```
pub struct Children {
    client: Client,
    cluster: Cluster,
    manager: Arc<str>,
    ownership: Ownership,
    /// Kind of the parent, in the version that the controller watches.
    resource: Resource,
    parent: Request,
    memory: ChildMemory,
    /// Withholds every write.
    observes: bool,
}

/// State of a child after it was reconciled.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ChildState<C> {
    /// The child exists and has the desired fields.
    Live(Arc<C>),
    /// The name belongs to an object of someone else, which was not written.
    Foreign,
    /// The child is being deleted. It is created again when it is gone.
    Terminating,
    /// The cluster does not have the kind.
    NotInstalled,
    /// The child would be written, if writes were not withheld; see [`Children::observe_only`].
    Withheld(Option<Arc<C>>),
}

/// [`ChildState`] without a type.
#[derive(Debug)]
pub(crate) enum Settled {
    Live(Arc<Object>),
    Foreign,
    Terminating,
    NotInstalled,
    Withheld(Option<Arc<Object>>),
}

/// Decides whether a live child has to be deleted and created again.
type MustRecreate<'a> = Option<&'a (dyn Fn(&Arc<Object>) -> Result<bool, ChildError> + Send + Sync)>;

/// After this many changes by other clients, a reconcile of a child fails.
const TRIES: u32 = 5;

impl Children {
    /// Begins to reconcile the children of an object that was read from the server.
    ///
    /// # Errors
    /// When the parent has no uid.
    pub fn of<K: KnownKind>(parent: &K, cx: &Context, memory: &ChildMemory) -> Result<Self, ChildError> {
        let key = parent.key();
        let owner = parent
            .controller_owner_ref(&())
            .ok_or_else(|| ChildError::NoUid {
                parent: key.to_string(),
            })?;
        Ok(Self::of_parts(owner, Resource::of::<K>(), key, cx, memory))
    }

    /// As [`of`](Self::of), for a parent without a type.
    pub(crate) fn of_parts(
        owner: OwnerReference,
        resource: Resource,
        key: ObjectKey,
        cx: &Context,
        memory: &ChildMemory,
    ) -> Self {
        Self {
            client: cx.client().force(),
            cluster: cx.cluster().clone(),
            manager: cx.field_manager().into(),
            ownership: Ownership {
                owner,
                parent_namespace: key.namespace().to_owned(),
                set: None,
            },
            resource,
            parent: Request::new(cx.cluster().name().clone(), key),
            memory: memory.clone(),
            observes: false,
        }
    }

    /// Members of an apply set of the same parent: marked with the id of the set, and written by a field manager of the set.
    pub(crate) fn of_set(&self, id: &Arc<str>) -> Self {
        let manager = format!("{}-applyset", self.manager);
        Self {
            client: self.client.field_manager(&manager),
            cluster: self.cluster.clone(),
            manager: manager.into(),
            ownership: Ownership {
                set: Some(Arc::clone(id)),
                ..self.ownership.clone()
            },
            resource: self.resource.clone(),
            parent: self.parent.clone(),
            memory: self.memory.clone(),
            observes: self.observes,
        }
    }

    /// Returns true if every write is withheld.
    pub(crate) fn is_observing(&self) -> bool {
        self.observes
    }

    /// Withholds every write: a child that would be created or changed is [`ChildState::Withheld`]. A dry run asks the server
    /// whether a child would be changed, unless that is known.
    #[must_use]
    pub fn observe_only(mut self) -> Self {
        self.observes = true;
        self
    }

    /// Creates the child, or restores the fields that it names.
    ///
    /// # Errors
    /// When the child cannot be owned, or a request fails.
    ///
    /// # Cancel safety
    /// If dropped midway, the outcome of a write is unknown. The next reconcile continues.
    pub async fn reconcile<C: ChildKind>(
        &self,
        child: C,
        rules: &ChildRules<C>,
    ) -> Result<ChildState<C>, ChildError> {
        let id = self.id_of(&Resource::of::<C>(), child.meta());
        typed(self.reconcile_as(&id, &child, rules).await?)
    }

    /// As [`reconcile`](Self::reconcile), for a kind that is known at run time.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn reconcile_dynamic(
        &self,
        resource: &Resource,
        child: DynamicObject,
        rules: &ChildRules<DynamicObject>,
    ) -> Result<ChildState<DynamicObject>, ChildError> {
        let id = self.id_of(&self.scoped(resource).await?, &child.metadata);
        typed(self.reconcile_as(&id, &child, rules).await?)
    }

    /// The parent.
    pub(crate) fn parent(&self) -> &Request {
        &self.parent
    }

    /// Kind of the parent, in the version that the controller watches.
    pub(crate) fn parent_resource(&self) -> &Resource {
        &self.resource
    }

    /// Which objects belong to the parent.
    pub(crate) fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(crate) fn field_manager(&self) -> &str {
        &self.manager
    }

    pub(crate) fn memory(&self) -> &ChildMemory {
        &self.memory
    }

    /// Returns the resource of a dynamic kind with its scope, which discovery knows.
    pub(crate) async fn scoped(&self, resource: &Resource) -> Result<Resource, ChildError> {
        if resource.is_namespaced().is_some() {
            return Ok(resource.clone());
        }
        let query = ResourceQuery::kind(resource.group(), resource.kind()).version(resource.version());
        let mapping = self.cluster.mapper().resolve(&query).await?;
        Ok(mapping.resource().clone())
    }

    /// Returns the kind and key under which the state of a child is kept.
    pub(crate) fn id_of(&self, resource: &Resource, child: &ObjectMeta) -> ChildId {
        let key = desired::child_key(resource, child, self.parent.key().namespace());
        (resource.clone(), key)
    }

    pub(crate) async fn reconcile_as<C>(
        &self,
        id: &ChildId,
        child: &C,
        rules: &ChildRules<C>,
    ) -> Result<Settled, ChildError>
    where
        C: kube::Resource + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        self.ownership.check(id)?;
        let encode = |source| ChildError::Encode {
            child: describe(&id.0, &id.1),
            source,
        };
        let encoded = serde_json::to_vec(child).map_err(encode)?;
        let hash = desired::hash_encoded(&encoded, &self.ownership, &rules.ignored);
        let found = match self.client.of(&id.0).get_object(&id.1).await {
            Err(error) if error.is_absent() => return Ok(Settled::NotInstalled),
            found => found?,
        };
        // Nearly all reconciles end here: nothing is parsed.
        if let Some(live) = &found
            && !live.is_deleting()
            && self.memory.is_unchanged(&self.parent, id, hash, live)
        {
            return Ok(Settled::Live(Arc::clone(live)));
        }
        let object = serde_json::from_slice(&encoded).map_err(encode)?;
        let desired = Desired::new(
            id,
            hash,
            object,
            &self.ownership,
            &rules.ignored,
            rules.adopts_orphans,
        );
        let recreate = rules.recreate_if.as_ref().map(|differs| {
            |live: &Arc<Object>| -> Result<bool, ChildError> { Ok(differs(&*live.decoded::<C>()?, child)) }
        });
        let recreate = recreate
            .as_ref()
            .map(|recreate| recreate as &(dyn Fn(&_) -> _ + Send + Sync));
        self.settle(&desired, found, recreate).await
    }

    /// Returns the desired fields of a child.
    pub(crate) fn desired<C: Serialize>(
        &self,
        id: &ChildId,
        child: &C,
        rules: &ChildRules<C>,
    ) -> Result<Desired, ChildError> {
        self.ownership.check(id)?;
        let object = serde_json::to_value(child).map_err(|source| ChildError::Encode {
            child: describe(&id.0, &id.1),
            source,
        })?;
        let (ignored, adopts_orphans) = (&rules.ignored, rules.adopts_orphans);
        Ok(Desired::new(
            id,
            0,
            object,
            &self.ownership,
            ignored,
            adopts_orphans,
        ))
    }

    /// Returns true if the object belongs to the parent, or is adopted.
    pub(crate) fn is_own(&self, desired: &Desired, object: &Object) -> bool {
        match self.ownership.relation_of(&desired.id, object) {
            Relation::Controlled => true,
            Relation::Orphan => desired.adopts_orphans,
            Relation::Former | Relation::Foreign => false,
        }
    }

    /// Brings the child into its desired state. The loop ends unless other clients keep replacing the object.
    async fn settle(
        &self,
        desired: &Desired,
        mut found: Option<Arc<Object>>,
        recreate: MustRecreate<'_>,
    ) -> Result<Settled, ChildError> {
        let mut is_live = false;
        for _ in 0..TRIES {
            let Some(object) = found else {
                if self.observes {
                    return Ok(Settled::Withheld(None));
                }
                match self.create(desired).await {
                    Ok(created) => return Ok(Settled::Live(created)),
                    Err(ChildError::Request(error)) if error.is_already_exists() => {}
                    // Nothing can be created there, and the parent is deleted too.
                    Err(error) if error.is_namespace_terminating() => return Ok(Settled::Terminating),
                    Err(error) => return Err(error),
                }
                (found, is_live) = (self.read_live(desired).await?, true);
                continue;
            };
            let relation = match self.ownership.relation_of(&desired.id, &object) {
                Relation::Orphan if desired.adopts_orphans => Relation::Controlled,
                relation => relation,
            };
            if let Relation::Controlled = relation {
                match self.restore(desired, &object, recreate).await? {
                    Some(settled) => return Ok(settled),
                    // The object was replaced or deleted meanwhile.
                    None => (found, is_live) = (self.read_live(desired).await?, true),
                }
                continue;
            }
            let id = &desired.id;
            if is_live {
                self.memory.confirmed_foreign(&self.parent, id.clone(), &object);
            } else if !self.memory.is_confirmed_foreign(&self.parent, id, &object) {
                // First tracked, then read: every later change of the object enqueues the parent.
                self.memory.track(&self.parent, id);
                (found, is_live) = (self.read_live(desired).await?, true);
                continue;
            }
            self.memory.track(&self.parent, id);
            return Ok(match relation {
                Relation::Former => Settled::Terminating,
                _ => Settled::Foreign,
            });
        }
        Err(ChildError::Contended {
            child: describe(desired.resource(), desired.key()),
        })
    }

    /// Writes a child of this parent if it has to. Returns `None` if the object does not exist any more.
    async fn restore(
        &self,
        desired: &Desired,
        object: &Arc<Object>,
        recreate: MustRecreate<'_>,
    ) -> Result<Option<Settled>, ChildError> {
        if object.is_deleting() {
            return Ok(Some(Settled::Terminating));
        }
        if self
            .memory
            .matches(&self.parent, &desired.id, desired.hash, object)
        {
            return Ok(Some(Settled::Live(Arc::clone(object))));
        }
        if let Some(recreate) = recreate
            && recreate(object)?
        {
            if self.observes {
                return Ok(Some(Settled::Withheld(Some(Arc::clone(object)))));
            }
            return match self.delete(desired, object).await {
                Ok(()) => Ok(Some(Settled::Terminating)),
                Err(error) if error.is_conflict() => Ok(None),
                Err(error) => self.unless_replaced(desired, object, error).await,
            };
        }
        if self.observes {
            return self.observe(desired, object).await;
        }
        let mut answer = match self.apply(desired, object.uid()).await {
            Ok(answer) => answer,
            Err(error) => return self.unless_replaced(desired, object, error).await,
        };
        if self.has_created_entry(&answer) {
            // The process that created the child ended before it took over the fields of the create.
            self.take_over(desired, answer).await?;
            answer = match self.apply(desired, object.uid()).await {
                Ok(answer) => answer,
                Err(error) => return self.unless_replaced(desired, object, error).await,
            };
        }
        Ok(self.remember(desired, &answer).await?.map(Settled::Live))
    }

    /// Returns the error of a write, or `None` if the object was deleted or replaced meanwhile. A server rejects a write with
    /// another uid as a conflict or as invalid, which also has other causes.
    async fn unless_replaced(
        &self,
        desired: &Desired,
        object: &Object,
        error: Error,
    ) -> Result<Option<Settled>, ChildError> {
        let may_be_replaced = error.is_conflict() || error.is_invalid() || error.is_not_found();
        if may_be_replaced && !error.is_absent() {
            let live = self.read_live(desired).await?;
            if live.is_none_or(|live| live.uid() != object.uid()) {
                return Ok(None);
            }
        }
        Err(error.into())
    }

    async fn apply(&self, desired: &Desired, uid: &str) -> Result<Value, Error> {
        let patch = desired.apply_patch(uid);
        self.values(desired).patch(desired.key(), &patch).await
    }

    /// Deletes the child, if it is still as it was read.
    async fn delete(&self, desired: &Desired, object: &Object) -> Result<(), Error> {
        let options = DeleteParams::background().preconditions(Preconditions {
            uid: Some(object.uid().to_owned()),
            resource_version: Some(object.resource_version().to_owned()),
        });
        self.objects(desired).delete(desired.key(), options).await?;
        Ok(())
    }

    /// Remembers the answer to a write, and returns the object as later reads see it.
    async fn remember(&self, desired: &Desired, answer: &Value) -> Result<Option<Arc<Object>>, ChildError> {
        let bytes = serde_json::to_vec(answer).unwrap_or_default();
        let Ok(answered) = Object::from_slice(&bytes) else {
            return Ok(None);
        };
        // The cache can drop fields by a transform, so the values are compared as the cache has them.
        let cached = self.objects(desired).get_object(desired.key()).await?;
        let is_same = |cached: &Arc<Object>| cached.resource_version() == answered.resource_version();
        let object = cached.filter(is_same).unwrap_or_else(|| Arc::new(answered));
        if let Some(fields) = projection::applied_fields(answer, &self.manager) {
            let (id, hash) = (desired.id.clone(), desired.hash);
            self.memory.applied(&self.parent, id, hash, fields, &object);
        }
        Ok(Some(object))
    }

    async fn read_live(&self, desired: &Desired) -> Result<Option<Arc<Object>>, Error> {
        let live = self.client.live().of(desired.resource());
        live.get_object(desired.key()).await
    }

    fn objects(&self, desired: &Desired) -> KindClient<DynamicObject> {
        self.client.of(desired.resource())
    }

    /// Client whose answers have all fields, `managedFields` too.
    fn values(&self, desired: &Desired) -> KindClient<Value> {
        self.client.of_as(desired.resource(), ObjectDetail::Full)
    }
}

fn typed<C>(settled: Settled) -> Result<ChildState<C>, ChildError>
where
    C: DeserializeOwned + Send + Sync + 'static,
{
    Ok(match settled {
        Settled::Live(object) => ChildState::Live(object.decoded()?),
        Settled::Foreign => ChildState::Foreign,
        Settled::Terminating => ChildState::Terminating,
        Settled::NotInstalled => ChildState::NotInstalled,
        Settled::Withheld(live) => ChildState::Withheld(live.map(|live| live.decoded()).transpose()?),
    })
}

/// Kind and key of a child, for messages.
pub(crate) fn described(resource: &Resource, key: &ObjectKey) -> String {
    describe(resource, key)
}

impl fmt::Debug for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Children")
            .field("parent", &self.parent)
            .finish_non_exhaustive()
    }
}
