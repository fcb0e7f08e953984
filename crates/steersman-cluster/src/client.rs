// SPDX-License-Identifier: Apache-2.0
//! Reads through the cache and writes to the server, for any kind.
//!
//! A [`Client`] is obtained from a [`Cluster`](crate::Cluster). Its verbs take the kind as a type. [`Client::of`] has
//! the same verbs for kinds that are known only at run time. [`Client::metadata`] reads and changes metadata only.
//! Derive clients that behave differently from it; deriving one is as cheap as a clone:
//!
//! ```no_run
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use steersman_cluster::{Client, Error};
//! use steersman_core::ObjectKey;
//!
//! # async fn example(client: Client) -> Result<(), Error> {
//! let key = ObjectKey::new("web", "front");
//! let cached = client.get::<ConfigMap>(&key).await?;           // from the cache, which watches from now on
//! let newest = client.live().get::<ConfigMap>(&key).await?;    // from the server
//! if let Some(map) = newest {
//!     client.dry_run().update(&*map).await?;                   // changes nothing
//!     client.field_manager("web-operator").force().apply(&*map).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! 1. A read from the cache sends no request once the kind is in sync.
//! 2. A read from the cache shows every earlier write through a client of the same cluster, or a newer state.
//! 3. Every attempt of every write passes the fences of its client; see [`Fence`].
//! 4. The client sends a write once, unless the server cannot have acted on it. The error reports if the outcome is
//!    unknown; see [`Error::may_be_applied`].
//! 5. A client of a closed cluster rejects every request, reads included.
//! 6. Errors and logs show no content of an object. Values that the server repeats in a rejection are only in
//!    [`Error::status`]. The message of an admission webhook is shown.
//!
//! # Limits
//! The server's answers to [`delete_collection`](Client::delete_collection) and to writes of a subresource such as
//! `scale` do not contain the new state of the objects. The cache shows these changes when the watch delivers them.
//!
//! Each version of a kind has its own informer, and the answer to a write has the form of one version. After a write through
//! one version, a cached read of another version shows the change when the watch delivers it. Read and write one version; or
//! call [`wait_for_revision`](Client::wait_for_revision) with the resource version of the written object.

mod answer;
mod collection;
mod create_or_update;
mod deletion;
mod exchange;
mod finalizer;
mod impersonation;
mod kind;
mod metadata;
mod page;
mod reached;
mod request;
mod subresource;
mod typed;
mod watch;

use std::{fmt, sync::Arc, time::Duration};

use kube::{api::ValidationDirective, core::DynamicObject};
use steersman_cache::{Object, ObjectDetail, ReadScopes, Reader, Resource, Scope, View};

pub use self::{
    create_or_update::OperationResult,
    deletion::Deletion,
    impersonation::{Impersonation, ImpersonationError},
    kind::{Kind, KindClient},
    metadata::MetadataClient,
    page::ListPage,
    watch::Watch,
};
use crate::{Error, Fence, Operation, cluster::Inner, transport::Transport};

/// Maximum number of attempts of a change that other clients overtake; then the conflict is returned.
const CONFLICT_TRIES: u32 = 10;

/// Reads and writes the objects of one cluster. Cloning copies a pointer.
#[derive(Clone)]
pub struct Client(Arc<Parts>);

#[derive(Clone)]
struct Parts {
    cluster: Arc<Inner>,
    transport: Transport,
    reader: Arc<Reader>,
    is_live: bool,
    reads: LiveReads,
    writes: Writes,
    observer: Option<Observer>,
}

/// Called with each object that the server returns for a write.
type Observer = Arc<dyn Fn(&Resource, &Object) + Send + Sync>;

/// Additional restrictions of live reads. Empty strings set none.
#[derive(Clone, Debug)]
struct LiveReads {
    fields: Arc<str>,
    resource_version: Arc<str>,
}

/// Options of writes.
#[derive(Clone, Debug)]
struct Writes {
    dry_run: bool,
    force: bool,
    field_manager: Option<Arc<str>>,
    validation: Option<ValidationDirective>,
}

impl Client {
    pub(crate) fn new(cluster: &Arc<Inner>) -> Self {
        Self(Arc::new(Parts {
            transport: cluster.transport().clone(),
            reader: Arc::clone(cluster.reader()),
            is_live: false,
            reads: LiveReads {
                fields: "".into(),
                resource_version: "".into(),
            },
            writes: Writes {
                dry_run: false,
                force: false,
                field_manager: cluster.field_manager().cloned(),
                validation: None,
            },
            observer: None,
            cluster: Arc::clone(cluster),
        }))
    }

    /// Returns a client whose reads bypass the cache and query the server.
    #[must_use]
    pub fn live(&self) -> Self {
        self.with(|parts| parts.is_live = true)
    }

    /// Returns a client whose reads query the server, and whose lists and collections are also selected by fields, such
    /// as `spec.nodeName=one`. Each kind supports only a few fields; to find objects by other content, use an index.
    #[must_use]
    pub fn fields(&self, selector: &str) -> Self {
        self.live().with(|parts| parts.reads.fields = selector.into())
    }

    /// Returns a client whose reads query the server and show a state at least as new as this resource version. With
    /// `0` the server answers from its watch cache, which is the cheapest for it.
    #[must_use]
    pub fn not_older_than(&self, resource_version: &str) -> Self {
        self.live()
            .with(|parts| parts.reads.resource_version = resource_version.into())
    }

    /// Returns a client with separate informers. Informers that its reads start stop when it and its clones are
    /// dropped, unless another handle holds them.
    #[must_use]
    pub fn for_run(&self) -> Self {
        self.with(|parts| parts.reader = Arc::new(parts.cluster.new_reader()))
    }

    /// Like [`for_run`](Self::for_run), with cached reads limited to the given scope for each resource listed.
    #[must_use]
    pub fn for_run_in(&self, scopes: ReadScopes) -> Self {
        self.with(|parts| parts.reader = Arc::new(parts.cluster.new_reader_in(scopes)))
    }

    /// Returns a client whose cached reads of a kind see the objects of this scope. Use it in a controller that reads
    /// other objects of a kind than it watches. The informer belongs to the client that this one is derived from: in a
    /// controller, each distinct scope costs a watch and a store until the run ends. Do not create a scope for each
    /// object; read such objects [live](Self::live).
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use steersman_cache::{Query, Scope};
    /// # async fn example(client: steersman_cluster::Client) -> Result<(), steersman_cluster::Error> {
    /// let all = client.in_scope::<ConfigMap>(&Scope::all());
    /// let maps = all.list::<ConfigMap>(&Query::new().namespace("kube-system")).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_scope<K: Kind>(&self, scope: &Scope) -> Self {
        self.reading(&Resource::of::<K>(), scope)
    }

    fn reading(&self, resource: &Resource, scope: &Scope) -> Self {
        self.with(|parts| parts.reader = Arc::new(parts.reader.in_scope(resource, scope)))
    }

    /// Returns the reader of the cache for this client.
    #[must_use]
    pub fn reader(&self) -> &Reader {
        &self.0.reader
    }

    /// Returns a client whose writes are dry runs: the server validates and admits them, but does not store the result.
    #[must_use]
    pub fn dry_run(&self) -> Self {
        self.with(|parts| parts.writes.dry_run = true)
    }

    /// Returns a client that writes with this field manager: a stable name of at most 128 characters, by which the
    /// server records the owner of each field. Default: the field manager of the
    /// [cluster](crate::ClusterBuilder::field_manager); without one, every write except a deletion is an error.
    #[must_use]
    pub fn field_manager(&self, name: &str) -> Self {
        self.with(|parts| parts.writes.field_manager = Some(name.into()))
    }

    /// Returns a client whose applies take over fields of other field managers. Default: such fields are conflicts.
    #[must_use]
    pub fn force(&self) -> Self {
        self.with(|parts| parts.writes.force = true)
    }

    /// Returns a client with this field validation for unknown and duplicate fields. Default: the server drops such
    /// fields and sends a warning, which is logged.
    #[must_use]
    pub fn field_validation(&self, validation: ValidationDirective) -> Self {
        self.with(|parts| parts.writes.validation = Some(validation))
    }

    /// Returns a client with another timeout for each request, retries included; see
    /// [`ClusterBuilder::request_timeout`](crate::ClusterBuilder::request_timeout).
    #[must_use]
    pub fn timeout(&self, limit: Duration) -> Self {
        self.with(|parts| parts.transport.set_timeout(limit))
    }

    /// Returns a client whose writes pass this fence in addition.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        self.with(|parts| parts.transport.add_fence(fence))
    }

    /// Returns a client that calls `observer` with each object that the server returns for a write. The call runs in
    /// the task that awaits the write, before the write returns, and must be quick.
    #[must_use]
    pub fn observed(&self, observer: impl Fn(&Resource, &Object) + Send + Sync + 'static) -> Self {
        self.with(|parts| parts.observer = Some(Arc::new(observer)))
    }

    /// Returns a client without the fences that were added. The gate of the cluster remains, which
    /// [`Cluster::close`](crate::Cluster::close) closes.
    #[must_use]
    pub fn unfenced(&self) -> Self {
        self.with(|parts| parts.transport.remove_fences())
    }

    /// Returns a client with the same verbs for a kind that is known at run time.
    #[must_use]
    pub fn of(&self, resource: &Resource) -> KindClient<DynamicObject> {
        self.of_as(resource, ObjectDetail::Full)
    }

    /// Returns a client that decodes objects as `T`: a smaller type than that of the kind, or
    /// [`PartialObjectMeta`](kube::core::PartialObjectMeta), which needs only the metadata.
    #[must_use]
    pub fn of_as<T>(&self, resource: &Resource, wanted: ObjectDetail) -> KindClient<T> {
        KindClient::new(self.clone(), resource.clone(), wanted)
    }

    /// Returns a kube client that uses the same transport: the same fences, the same timeout and the same counters. The
    /// cache does not see its writes before the watch delivers them. Cloning it is cheaper than a second call.
    ///
    /// # Panics
    /// When called outside of a tokio runtime.
    #[must_use]
    pub fn kube(&self) -> kube::Client {
        let held = Arc::clone(&self.0.cluster) as Arc<dyn Send + Sync>;
        self.0.transport.clone().holding(held).into_kube()
    }

    /// Returns a client whose reads show the newest state.
    fn newest(&self) -> Self {
        self.not_older_than("")
    }

    fn with(&self, change: impl FnOnce(&mut Parts)) -> Self {
        let mut parts = Parts::clone(&self.0);
        change(&mut parts);
        Self(Arc::new(parts))
    }

    /// Returns the cached objects of a resource, or `None` if the read has to query the server. `call` is used only for
    /// errors.
    async fn view(
        &self,
        resource: &Resource,
        namespace: &str,
        wanted: ObjectDetail,
        call: impl Fn() -> Operation,
    ) -> Result<Option<View>, Error> {
        self.check_open(&call)?;
        if self.is_live_for(resource) {
            return Ok(None);
        }
        let view = self.0.reader.view(resource, namespace, wanted).await;
        view.map_err(|source| kind::unreadable(&call(), source))
    }

    /// Checks that the cluster is not closed.
    fn check_open(&self, call: impl Fn() -> Operation) -> Result<(), Error> {
        let gate = self.0.cluster.gate().check();
        gate.map_err(|closed| answer::unanswered(&call(), closed.into()))
    }

    /// Reports whether reads of a resource query the server.
    fn is_live_for(&self, resource: &Resource) -> bool {
        self.0.is_live || self.0.cluster.is_uncached(resource)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("cluster", self.0.cluster.name())
            .field("transport", &self.0.transport)
            .field("live", &self.0.is_live)
            .field("reads", &self.0.reads)
            .field("writes", &self.0.writes)
            .finish_non_exhaustive()
    }
}
