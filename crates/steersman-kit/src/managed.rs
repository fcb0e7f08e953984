// SPDX-License-Identifier: Apache-2.0
//! A [`KindReconciler`] as the reconciler of a controller: the stages of a reconcile.
//!
//! # Stages
//! Each is a span of level debug, in this order:
//!
//! | span | work |
//! |---|---|
//! | `get` | reads the object from the cache. A deleted object, and one that is being deleted without our finalizer, ends here |
//! | `finalizer` | adds the finalizer, if there is a cleanup and the object does not have it |
//! | `defaults` | sets defaults in memory |
//! | `conditions` | sets conditions that are missing to `Unknown` |
//! | `convert` | converts the object to the newest version, and sets its defaults |
//! | `user_code` or `cleanup` | calls your code, with a span `child` for each child |
//! | `status` | writes the status, if it differs |
//!
//! The [switches](crate::Switches) of the object are read after `get`: the reconcile of a suspended object ends there.
//!
//! # Guarantees
//! 1. The object that your code gets is a copy: nothing of its spec or metadata is ever written.
//! 2. A reconcile writes the status at most once, and only if it differs.
//! 3. `observedGeneration` is the generation of the object that your code got. If the object is newer after the write, it is
//!    reconciled again at once.
//! 4. The finalizer is added before the first reconcile, and removed after the cleanup is done. The cleanup of an object is not
//!    called again after that, even if the answer to the removal is lost.
//! 5. An error of your code is passed to [`KindReconciler::on_error`], before the status is written.
//! 6. A failed write of the status during a cleanup does not stop the cleanup.

mod attempts;

use std::{fmt, panic::resume_unwind, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use steersman_cache::Resource;
use steersman_cluster::ObjectExt;
use steersman_core::{Action, ObjectKey, error_chain};
use steersman_runtime::{
    BoxError, Context, Declarations, ObjectReconciler, Request, Undecodable, dynamic, kind, terminal,
};
use tracing::{Instrument, debug_span};

use self::attempts::Attempts;
use crate::{
    ChildKind, ChildMemory, Children, Cleaned, Defaults, Entry, FinalizerMode, KindList, KindReconciler,
    KindVisitor, ObservedAt, StatusParts, StatusWrite, Switches, Work,
    apply_set::registry::BY_SET,
    apply_status,
    status_handler::{HandlerResults, earliest},
    status_write::decode_status,
    switches::{SwitchBoard, Switched},
    work::{DynamicKind, WorkOptions},
};

/// A reconciler for a controller; from [`managed`]. `S` is the version of the kind that the controller watches.
#[must_use = "a reconciler runs once it is passed to a controller"]
pub struct Managed<R: KindReconciler, S = <R as KindReconciler>::Kind> {
    reconciler: R,
    defaults: Option<fn(&mut S)>,
    upgrade: fn(Arc<S>) -> Arc<R::Kind>,
    upgraded_defaults: Option<fn(&mut R::Kind)>,
    dynamic_kinds: Arc<[DynamicKind]>,
    memory: ChildMemory,
    attempts: Attempts,
    switches: Switches,
    switched: SwitchBoard,
}

/// Makes the reconciler of a controller from a [`KindReconciler`].
///
/// The controller watches the kind and the declared children, and writes as its own
/// [field manager](steersman_runtime::Builder::field_manager).
pub fn managed<R: KindReconciler>(reconciler: R) -> Managed<R> {
    Managed {
        reconciler,
        defaults: None,
        upgrade: |object| object,
        upgraded_defaults: None,
        dynamic_kinds: Arc::new([]),
        memory: ChildMemory::new(),
        attempts: Attempts::default(),
        switches: Switches::new(),
        switched: SwitchBoard::default(),
    }
}

impl<R: KindReconciler> Managed<R> {
    /// Sets the [`Defaults`] of the kind in memory before each reconcile. They are never written. Default: off.
    pub fn defaulted(mut self) -> Self
    where
        R::Kind: Defaults,
    {
        self.defaults = Some(Defaults::set_defaults);
        self
    }

    /// Watches the older version `S` of the kind, and converts each object in memory before the reconcile. The controller is then
    /// one of `S`, and the status is written in that version. Call [`defaulted`](Self::defaulted) before this for the defaults
    /// of the new version.
    pub fn upgrades<S: ChildKind>(self) -> Managed<R, S>
    where
        R::Kind: From<S>,
    {
        Managed {
            reconciler: self.reconciler,
            defaults: None,
            upgrade: |object| Arc::new(R::Kind::from(Arc::unwrap_or_clone(object))),
            upgraded_defaults: self.defaults,
            dynamic_kinds: self.dynamic_kinds,
            memory: self.memory,
            attempts: self.attempts,
            switches: self.switches,
            switched: self.switched,
        }
    }
}

impl<R: KindReconciler, S> Managed<R, S> {
    /// Sets the [`Defaults`] of the watched version, before the conversion. Default: off.
    pub fn stored_defaults(mut self) -> Self
    where
        S: Defaults,
    {
        self.defaults = Some(Defaults::set_defaults);
        self
    }

    /// Declares a child kind that is known at run time; see [`Work::dynamic_child`].
    pub fn owns_dynamic(self, resource: Resource) -> Self {
        self.owning(resource, false)
    }

    /// As [`owns_dynamic`](Self::owns_dynamic), for a kind that might not be installed.
    pub fn owns_optional_dynamic(self, resource: Resource) -> Self {
        self.owning(resource, true)
    }

    /// Maximum number of attempts for one generation of an object. After that, an error is not retried until the object or a child
    /// changes, and a Warning event `RetriesExhausted` is recorded. Default: no limit.
    pub fn retry_budget(mut self, attempts: u32) -> Self {
        self.attempts.set_limit(attempts);
        self
    }

    /// Names of the annotations that suspend an object, request a reconcile, or only observe. Default: all of [`Switches`], with
    /// their default names; `Switches::none()` turns them off.
    ///
    /// Predicates of the controller have to admit changes of annotations: write
    /// `generation_changed().or(annotations_changed())`, not `generation_changed()`.
    pub fn switches(mut self, switches: Switches) -> Self {
        self.switches = switches;
        self
    }

    fn owning(mut self, resource: Resource, is_optional: bool) -> Self {
        let more = DynamicKind {
            resource,
            is_optional,
        };
        self.dynamic_kinds = self.dynamic_kinds.iter().cloned().chain([more]).collect();
        self
    }

    fn forget(&self, parent: &Request) {
        self.memory.forget(parent);
        self.attempts.forget(parent);
        self.switched.forget(parent);
    }
}

impl<R: KindReconciler, S: ChildKind> ObjectReconciler<S> for Managed<R, S> {
    type Error = BoxError;

    fn declare(&self, declarations: &mut Declarations) {
        declare_children::<R::Children>(declarations, &self.memory);
        for DynamicKind {
            resource,
            is_optional,
        } in &*self.dynamic_kinds
        {
            let child = match is_optional {
                true => dynamic(resource.clone()).optional(),
                false => dynamic(resource.clone()),
            };
            declarations.owns(child.clone());
            declarations.watches(child.clone(), self.memory.tracker.handler(resource.clone()));
            declarations.watches(child.index(&BY_SET), self.memory.sets.handler());
            permit_child(declarations, resource);
        }
        permit_parent::<R>(declarations, &Resource::of::<S>());
        self.switched.declare(declarations);
        let parts = || (self.memory.clone(), self.attempts.clone(), self.switched.clone());
        let (memory, attempts, switched) = parts();
        declarations.on_deleted_everywhere(move |cluster, key| {
            let parent = Request::new(cluster.clone(), key.clone());
            memory.forget(&parent);
            attempts.forget(&parent);
            switched.forget(&parent);
        });
        let (memory, attempts, switched) = parts();
        declarations.on_cluster_removed(move |cluster| {
            memory.forget_cluster(cluster);
            attempts.forget_cluster(cluster);
            switched.forget_cluster(cluster);
        });
    }

    fn finalizer(&self) -> Option<&str> {
        R::Finalizer::NAME
    }

    async fn on_deleted(&self, key: ObjectKey, cx: Context) -> Result<Action, BoxError> {
        self.forget(&Request::new(cx.cluster().name().clone(), key));
        Ok(Action::await_change())
    }

    async fn undecodable(&self, object: Undecodable, cx: Context) -> Result<Action, BoxError> {
        let name = R::Finalizer::NAME.filter(|_| object.is_being_deleted());
        let Some(name) = name else {
            return Err(object.into_error());
        };
        let cleaned = R::Finalizer::cleanup_undecodable(&self.reconciler, &object, &cx).await?;
        match cleaned {
            Cleaned::Done => {
                object.remove_finalizer(name, &cx).await?;
                Ok(Action::await_change())
            }
            Cleaned::RetryAfter(delay) => Ok(Action::requeue_after(delay)),
        }
    }

    async fn reconcile(&self, object: Arc<S>, cx: Context) -> Result<Action, BoxError> {
        if object.is_being_deleted() {
            return self.clean_up(object, cx).await;
        }
        let on = self.switches.of(object.meta());
        if on.is_suspended {
            return self.suspend(&object, &cx, on).await;
        }
        let cx = match on.is_observed {
            true => cx.observe_only(),
            false => cx,
        };
        let missing = R::Finalizer::NAME.filter(|name| !on.is_observed && !object.has_finalizer(name));
        if let Some(name) = missing {
            let adding = cx.client().add_finalizer(&*object, name);
            match adding.instrument(debug_span!("finalizer")).await {
                Err(error) if error.is_not_found() => return Ok(Action::await_change()),
                added => added?,
            }
        }
        let Some((upgraded, mut work, before)) = self.begin(&object, &cx, &on).await? else {
            return Ok(Action::await_change());
        };
        let user_code = self.reconciler.reconcile(&upgraded, &mut work);
        let result = user_code.instrument(debug_span!("user_code")).await;
        if let Err(error) = &result {
            self.reconciler.on_error(error, &mut work);
        }
        let HandlerResults { action, panic } = std::mem::take(&mut work.handled);
        let withheld = work.take_withheld();
        let (mut status, result) = work.finish(result.map(|own| earliest(own, action)));
        let at = observed(&*object, &cx);
        self.switches.report(&on, &withheld, status.conditions_mut(), at);
        if let Some(token) = &on.token {
            status.set_last_handled_reconcile_at(token);
        }
        let written = self.write_status(&object, &cx, &before, &status).await;
        if let Some(panic) = panic.lock().take() {
            resume_unwind(panic);
        }
        let action = self.attempts.judge(&*object, &cx, result)?;
        match written? {
            StatusWrite::WrittenForOldGeneration => Ok(Action::requeue_after(std::time::Duration::ZERO)),
            _ => Ok(action),
        }
    }
}

/// Begin of the work on an object: the newest version of the object, the work, and its status before.
type Begun<R> = (
    Arc<<R as KindReconciler>::Kind>,
    Work<R>,
    <R as KindReconciler>::Status,
);

impl<R: KindReconciler, S: ChildKind> Managed<R, S> {
    /// Runs the stages before user code. Returns `None` if the object was replaced meanwhile.
    async fn begin(
        &self,
        object: &Arc<S>,
        cx: &Context,
        on: &Switched,
    ) -> Result<Option<Begun<R>>, BoxError> {
        let mut object = Arc::clone(object);
        debug_span!("defaults").in_scope(|| {
            if let Some(set_defaults) = self.defaults {
                set_defaults(Arc::make_mut(&mut object));
            }
        });
        let at = observed(&*object, cx);
        let Some((status, before)) = self.statuses(&object, cx, at).await? else {
            return Ok(None);
        };
        let children = Children::of(&*object, cx, &self.memory)?;
        if self
            .switched
            .note(children.parent(), on, before.last_handled_reconcile_at())
        {
            self.memory.forget(children.parent());
            self.attempts.forget(children.parent());
        }
        let children = match cx.is_observe_only() {
            true => children.observe_only(),
            false => children,
        };
        let options = WorkOptions {
            memory: self.memory.clone(),
            dynamic_kinds: Arc::clone(&self.dynamic_kinds),
            is_last_attempt: self.attempts.is_last(&*object, cx),
        };
        let work = Work::new(cx.clone(), status, at, object.meta(), children, options);
        let upgraded = debug_span!("convert").in_scope(|| {
            let mut upgraded = (self.upgrade)(object);
            if let Some(set_defaults) = self.upgraded_defaults {
                set_defaults(Arc::make_mut(&mut upgraded));
            }
            upgraded
        });
        Ok(Some((upgraded, work, before)))
    }

    /// Does nothing with a suspended object, except that its status says so.
    async fn suspend(&self, object: &Arc<S>, cx: &Context, on: Switched) -> Result<Action, BoxError> {
        // The token is handled after the suspension.
        let on = Switched { token: None, ..on };
        let at = observed(&**object, cx);
        let Some((_, before)) = self.statuses(object, cx, at).await? else {
            return Ok(Action::await_change());
        };
        let parent = Request::new(cx.cluster().name().clone(), object.key());
        if self.switched.note(&parent, &on, None) {
            self.memory.forget(&parent);
        }
        let mut status = before.clone();
        self.switches.report(&on, &[], status.conditions_mut(), at);
        self.write_status(object, cx, &before, &status).await?;
        Ok(Action::await_change())
    }

    /// Returns the status with all conditions, and the stored one.
    async fn statuses(
        &self,
        object: &Arc<S>,
        cx: &Context,
        at: ObservedAt,
    ) -> Result<Option<(R::Status, R::Status)>, BoxError> {
        let stored = cx
            .client()
            .of(&Resource::of::<S>())
            .get_object(&object.key())
            .await?;
        let is_same = |stored: &str| object.meta().uid.as_deref() == Some(stored);
        let Some(stored) = stored.filter(|stored| is_same(stored.uid())) else {
            return Ok(None);
        };
        debug_span!("conditions").in_scope(|| {
            let mut before: R::Status = decode_status(stored.bytes()).map_err(terminal)?;
            let conditions = before.conditions_mut();
            conditions.retain_own_and(|name| self.switches.is_condition(name));
            let mut status = before.clone();
            status.conditions_mut().initialise(at);
            Ok(Some((status, before)))
        })
    }

    async fn write_status(
        &self,
        object: &S,
        cx: &Context,
        before: &R::Status,
        status: &R::Status,
    ) -> Result<StatusWrite, BoxError> {
        if !R::Status::WRITTEN {
            return Ok(StatusWrite::Unchanged);
        }
        let writing = apply_status(cx.client(), object, before, status);
        Ok(writing.instrument(debug_span!("status")).await?)
    }

    /// Cleans up after an object that is being deleted and has our finalizer.
    async fn clean_up(&self, object: Arc<S>, cx: Context) -> Result<Action, BoxError> {
        let name = R::Finalizer::NAME.unwrap_or_default();
        if !self.attempts.is_cleaned(&*object, &cx) {
            let off = Switched::default();
            let Some((upgraded, mut work, before)) = self.begin(&object, &cx, &off).await? else {
                return Ok(Action::await_change());
            };
            let cleanup = R::Finalizer::cleanup(&self.reconciler, &upgraded, &mut work);
            let result = cleanup.instrument(debug_span!("cleanup")).await;
            if let Err(error) = &result {
                self.reconciler.on_error(error, &mut work);
            }
            if !matches!(result, Ok(Cleaned::Done)) {
                let (status, result) = work.finish(result);
                if let Err(error) = self.write_status(&object, &cx, &before, &status).await {
                    let error = error_chain(&*error);
                    tracing::warn!(error, "cannot write the status during a cleanup; continuing");
                }
                return match self.attempts.judge(&*object, &cx, result)? {
                    Cleaned::RetryAfter(delay) => Ok(Action::requeue_after(delay)),
                    Cleaned::Done => Ok(Action::requeue()),
                };
            }
            self.attempts.set_cleaned(&*object, &cx);
        }
        let removing = cx.client().remove_finalizer(&*object, name);
        removing.instrument(debug_span!("finalizer")).await?;
        Ok(Action::await_change())
    }
}

/// Generation of the object and time of the reconcile.
fn observed(object: &impl kube::Resource, cx: &Context) -> ObservedAt {
    let now = Timestamp::try_from(cx.clock().wall()).unwrap_or(Timestamp::UNIX_EPOCH);
    // Times in a status have seconds.
    let seconds = Timestamp::from_second(now.as_second()).unwrap_or(Timestamp::UNIX_EPOCH);
    ObservedAt::new(object.meta().generation, seconds)
}

/// Declares the kinds of a list as children.
pub(crate) fn declare_children<L: KindList>(declarations: &mut Declarations, memory: &ChildMemory) {
    L::visit(&mut Declaring { declarations, memory });
}

/// Declares each child kind: as owned, as tracked, and as members of apply sets.
struct Declaring<'d> {
    declarations: &'d mut Declarations,
    memory: &'d ChildMemory,
}

impl KindVisitor for Declaring<'_> {
    fn visit<E: Entry>(&mut self) {
        let child = match E::OPTIONAL {
            true => kind::<E::Child>().optional(),
            false => kind::<E::Child>(),
        };
        self.declarations.owns(child.clone());
        let handler = self.memory.tracker.handler(Resource::of::<E::Child>());
        self.declarations.watches(child.clone(), handler);
        let handler = self.memory.sets.handler();
        self.declarations.watches(child.index(&BY_SET), handler);
        permit_child(self.declarations, &Resource::of::<E::Child>());
    }
}

/// Declares the writes of a child kind. A child is deleted by [`ChildRules::recreate_if`](crate::ChildRules::recreate_if), or
/// by the reconciler that owns it.
fn permit_child(declarations: &mut Declarations, child: &Resource) {
    declarations.permits(child, "", |child| {
        child.verbs(["create", "patch"]).at_times(["delete"])
    });
}

/// Declares the writes of the reconciled kind: status and finalizer.
fn permit_parent<R: KindReconciler>(declarations: &mut Declarations, parent: &Resource) {
    if R::Status::WRITTEN {
        declarations.permits(parent, "status", |status| status.verbs(["patch"]));
    }
    if R::Finalizer::NAME.is_some() {
        declarations.permits(parent, "", |parent| parent.verbs(["patch"]));
    }
    // The admission plugin OwnerReferencesPermissionEnforcement demands it for `blockOwnerDeletion` in children.
    declarations.permits(parent, "finalizers", |finalizers| finalizers.at_times(["update"]));
}

impl<R: KindReconciler, S> fmt::Debug for Managed<R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Managed")
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}
