// SPDX-License-Identifier: Apache-2.0
//! A [`KindReconciler`] as the reconciler of a controller.

use std::{fmt, sync::Arc};

use crate::{ChildKind, Defaults, KindReconciler};

/// A reconciler for a controller; from [`managed`]. `S` is the version of the kind that the controller watches.
#[must_use = "a reconciler runs once it is passed to a controller"]
pub struct Managed<R: KindReconciler, S = <R as KindReconciler>::Kind> {
    reconciler: Arc<R>,
    defaults: Option<fn(&mut S)>,
    upgrade: fn(Arc<S>) -> Arc<R::Kind>,
    upgraded_defaults: Option<fn(&mut R::Kind)>,
    field_manager: Option<Arc<str>>,
}

/// Makes the reconciler of a controller from a [`KindReconciler`].
pub fn managed<R: KindReconciler>(reconciler: R) -> Managed<R> {
    Managed {
        reconciler: Arc::new(reconciler),
        defaults: None,
        upgrade: |object| object,
        upgraded_defaults: None,
        field_manager: None,
    }
}

impl<R: KindReconciler> Managed<R> {
    /// Applies the [`Defaults`] of the kind in memory before each reconcile. They are never written. Default: off.
    pub fn defaulted(mut self) -> Self
    where
        R::Kind: Defaults,
    {
        self.defaults = Some(Defaults::set_defaults);
        self
    }

    /// Watches the older version `S` of the kind, and converts each object in memory before the reconcile. Call
    /// [`defaulted`](Self::defaulted) before this for the defaults of the new version.
    pub fn upgrades<S: ChildKind>(self) -> Managed<R, S>
    where
        R::Kind: From<S>,
    {
        Managed {
            reconciler: self.reconciler,
            defaults: None,
            upgrade: |object| Arc::new(R::Kind::from(Arc::unwrap_or_clone(object))),
            upgraded_defaults: self.defaults,
            field_manager: self.field_manager,
        }
    }
}

impl<R: KindReconciler, S> Managed<R, S> {
    /// Applies the [`Defaults`] of the watched version, before the conversion.
    pub fn stored_defaults(mut self) -> Self
    where
        S: Defaults,
    {
        self.defaults = Some(Defaults::set_defaults);
        self
    }

    /// Field manager of all writes. Default: that of the controller.
    pub fn field_manager(mut self, name: impl Into<Arc<str>>) -> Self {
        self.field_manager = Some(name.into());
        self
    }
}

impl<R: KindReconciler, S> fmt::Debug for Managed<R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Managed").finish_non_exhaustive()
    }
}
