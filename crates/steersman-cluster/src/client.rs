// SPDX-License-Identifier: Apache-2.0
//! Reads through the cache and writes to the server, for any kind.
//!
//! A [`Client`] comes from a [`Cluster`](crate::Cluster). Its verbs take the kind as a type; [`Client::of`] has the same
//! verbs for kinds that are known only when the program runs, and [`Client::metadata`] is about metadata alone. Clients that
//! behave differently are derived from it, and are as cheap as a clone:
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
//! 1. A read from the cache sends nothing, once the kind is in sync.
//! 2. A read from the cache shows what was written before through a client of the same cluster, or something newer.
//! 3. Every write passes the fences of its client, each attempt anew; see [`Fence`].
//! 4. A write is sent once, unless the server cannot have acted on it. Its error says if that is unknown; see
//!    [`Error::may_be_applied`].
//! 5. A client of a closed cluster refuses everything, reads included.
//! 6. No content of an object is shown by an error or in the log. What the server repeats of it in a refusal is in
//!    [`Error::status`] only; what an admission webhook says in words of its own is shown.
//!
//! # Limits
//! What [`delete_collection`](Client::delete_collection) deletes and what a subresource such as `scale` changes is seen
//! by the cache when the watch tells of it: the server's answer does not say what became of the objects.

mod answer;
mod collection;
mod deletion;
mod finalizer;
mod kind;
mod metadata;
mod request;
mod subresource;
mod typed;
mod watch;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use kube::{api::ValidationDirective, core::DynamicObject};
use steersman_cache::{Object, ObjectDetail, ReadScopes, Reader, Resource, Scope, View};

use self::{deletion::Answer, request::Plan};
pub use self::{
    deletion::Deletion,
    kind::{Kind, KindClient},
    metadata::MetadataClient,
    watch::Watch,
};
use crate::{Error, Fence, Operation, cluster::Inner, transport::Transport};

/// Reads and writes the objects of one cluster. Cloning it copies a pointer.
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

/// Is told of each object that a write was answered with.
type Observer = Arc<dyn Fn(&Resource, &Object) + Send + Sync>;

/// What the server is asked for besides. Empty is nothing.
#[derive(Clone, Debug)]
struct LiveReads {
    fields: Arc<str>,
    resource_version: Arc<str>,
}

/// How writes are done.
#[derive(Clone, Debug)]
struct Writes {
    dry_run: bool,
    force: bool,
    field_manager: Arc<str>,
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
                field_manager: Arc::clone(cluster.field_manager()),
                validation: None,
            },
            observer: None,
            cluster: Arc::clone(cluster),
        }))
    }

    /// The same verbs, whose reads go to the server.
    #[must_use]
    pub fn live(&self) -> Self {
        self.with(|parts| parts.is_live = true)
    }

    /// The same verbs, whose reads go to the server, and whose lists and collections are selected by fields besides, such
    /// as `spec.nodeName=one`. Each kind has its own few; what else is to be found by its content needs an index.
    #[must_use]
    pub fn fields(&self, selector: &str) -> Self {
        self.live().with(|parts| parts.reads.fields = selector.into())
    }

    /// The same verbs, whose reads go to the server and show a state that is not older than this resource version. With
    /// `0` that is what the server has at hand, which is the cheapest for it.
    #[must_use]
    pub fn not_older_than(&self, resource_version: &str) -> Self {
        self.live()
            .with(|parts| parts.reads.resource_version = resource_version.into())
    }

    /// The same, with informers of its own: those that its reads start end with it and its clones, if nobody else holds
    /// them.
    #[must_use]
    pub fn for_run(&self) -> Self {
        self.with(|parts| parts.reader = Arc::new(parts.cluster.new_reader()))
    }

    /// The same as [`for_run`](Self::for_run), whose cached reads see these scopes of the resources that they name.
    #[must_use]
    pub fn for_run_in(&self, scopes: ReadScopes) -> Self {
        self.with(|parts| parts.reader = Arc::new(parts.cluster.new_reader_in(scopes)))
    }

    /// The same verbs, whose cached reads of a kind see the objects of this scope: for a controller that reads other
    /// objects of a kind than it watches. The informer belongs to the client that this one is derived from: in a controller, each
    /// distinct scope costs a watch and a store until the run ends. Do not make a scope for each object; read those
    /// [live](Self::live).
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

    /// Reads from the cache for this client.
    #[must_use]
    pub fn reader(&self) -> &Reader {
        &self.0.reader
    }

    /// The same, whose writes change nothing: the server does all but keep the result.
    #[must_use]
    pub fn dry_run(&self) -> Self {
        self.with(|parts| parts.writes.dry_run = true)
    }

    /// The same, whose writes own what they write by this name. Default: that of the cluster.
    #[must_use]
    pub fn field_manager(&self, name: &str) -> Self {
        self.with(|parts| parts.writes.field_manager = name.into())
    }

    /// The same, whose applies take over fields that others own. Default: they are conflicts.
    #[must_use]
    pub fn force(&self) -> Self {
        self.with(|parts| parts.writes.force = true)
    }

    /// The same, where the server does this about fields that it does not know or that come twice. Default: it leaves them
    /// out and warns; what it warns of is logged.
    #[must_use]
    pub fn field_validation(&self, validation: ValidationDirective) -> Self {
        self.with(|parts| parts.writes.validation = Some(validation))
    }

    /// The same with another limit of time for each request, retries included; see
    /// [`ClusterBuilder::request_timeout`](crate::ClusterBuilder::request_timeout).
    #[must_use]
    pub fn timeout(&self, limit: Duration) -> Self {
        self.with(|parts| parts.transport.set_timeout(limit))
    }

    /// The same, whose writes pass this fence besides.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        self.with(|parts| parts.transport.add_fence(fence))
    }

    /// The same, which tells `observer` of each object that a write was answered with. It is called where the write is
    /// awaited, before that ends, and must be quick.
    #[must_use]
    pub fn observed(&self, observer: impl Fn(&Resource, &Object) + Send + Sync + 'static) -> Self {
        self.with(|parts| parts.observer = Some(Arc::new(observer)))
    }

    /// The same without the fences that it was given. What remains is the gate of the cluster, which
    /// [`Cluster::close`](crate::Cluster::close) closes.
    #[must_use]
    pub fn unfenced(&self) -> Self {
        self.with(|parts| parts.transport.remove_fences())
    }

    /// The same verbs for a kind that is known when the program runs.
    #[must_use]
    pub fn of(&self, resource: &Resource) -> KindClient<DynamicObject> {
        self.of_as(resource, ObjectDetail::Whole)
    }

    /// The same verbs, for objects that are decoded as `T`s: a smaller type than that of the kind, or
    /// [`PartialObjectMeta`](kube::core::PartialObjectMeta), which needs the metadata only.
    #[must_use]
    pub fn of_as<T>(&self, resource: &Resource, wanted: ObjectDetail) -> KindClient<T> {
        KindClient::new(self.clone(), resource.clone(), wanted)
    }

    /// A client of kube that takes the same way to the server: it passes the same fences, has the same limit of time, and
    /// is counted alike. What it writes is not seen by the cache before the watch tells of it. A clone of it is cheaper
    /// than a second one.
    ///
    /// # Panics
    /// When there is no tokio runtime here.
    #[must_use]
    pub fn kube(&self) -> kube::Client {
        let held = Arc::clone(&self.0.cluster) as Arc<dyn Send + Sync>;
        self.0.transport.clone().holding(held).into_kube()
    }

    fn with(&self, change: impl FnOnce(&mut Parts)) -> Self {
        let mut parts = Parts::clone(&self.0);
        change(&mut parts);
        Self(Arc::new(parts))
    }

    /// What the cache has of a resource, or nothing where the server is to be asked. The call is only for errors.
    async fn view(
        &self,
        resource: &Resource,
        namespace: &str,
        wanted: ObjectDetail,
        call: impl Fn() -> Operation,
    ) -> Result<Option<View>, Error> {
        let gate = self.0.cluster.gate().check();
        gate.map_err(|closed| answer::unanswered(&call(), closed.into()))?;
        if self.0.is_live || self.0.cluster.is_uncached(resource) {
            return Ok(None);
        }
        let view = self.0.reader.view(resource, namespace, wanted).await;
        view.map_err(|source| kind::unreadable(&call(), source))
    }

    /// Sends a request and reads the whole of its answer.
    async fn exchange(&self, plan: Plan<'_>) -> Result<Bytes, Error> {
        let call = plan.call;
        let sent = self.0.transport.send(plan.request()?).await;
        let response = sent.map_err(|error| answer::unanswered(call, error))?;
        let read = answer::read(call, response).await;
        if read.as_ref().is_err_and(Error::is_absent) {
            self.0.cluster.mapper().forget(call.resource());
        }
        read
    }

    /// Sends a write whose answer is an object, and shows that to the readers of the cache.
    async fn write(&self, plan: Plan<'_>) -> Result<Bytes, Error> {
        let call = plan.call;
        let writes = &self.0.writes;
        let validation = writes.validation.as_ref().map_or("", ValidationDirective::as_str);
        let plan = plan
            .with("fieldManager", &*writes.field_manager)
            .with_if(writes.dry_run, "dryRun", "All")
            .with_if(!validation.is_empty(), "fieldValidation", validation);
        let json = self.exchange(plan).await?;
        self.wrote(call, &json);
        Ok(json)
    }

    fn wrote(&self, call: &Operation, json: &[u8]) {
        // A subresource may be answered with another kind of object that has the same name.
        let kind = Some(call.resource().kind());
        let Some(answer) = Answer::read(json).filter(|answer| answer.kind() == kind) else {
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
            tracing::debug!(%call, %error, "the answer to a write is no object, and the cache does not see it");
        }
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
