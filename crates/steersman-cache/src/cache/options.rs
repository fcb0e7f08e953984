// SPDX-License-Identifier: Apache-2.0
//! What a cache does with a kind.

use crate::{ReflectorOptions, Scope, StoreOptions};

/// How objects of a kind are listed, watched and kept.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct KindOptions {
    scope: Scope,
    reflector: ReflectorOptions,
    store: StoreOptions,
}

impl KindOptions {
    /// Which part of the resource is cached. Default: all of it.
    pub fn scoped(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// How it is listed and watched.
    pub fn reflector(mut self, options: ReflectorOptions) -> Self {
        self.reflector = options;
        self
    }

    /// How it is kept.
    pub fn store(mut self, options: StoreOptions) -> Self {
        self.store = options;
        self
    }

    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(crate) fn reflector_options(&self) -> &ReflectorOptions {
        &self.reflector
    }

    pub(crate) fn store_options(&self) -> StoreOptions {
        self.store.clone()
    }
}
