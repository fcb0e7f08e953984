// SPDX-License-Identifier: Apache-2.0
//! How a child is reconciled.

use std::{fmt, sync::Arc};

type Differs<C> = Arc<dyn Fn(&C, &C) -> bool + Send + Sync>;

/// How a child is reconciled. Default: all fields are restored, orphans are foreign, and nothing is re-created.
#[must_use = "rules have an effect only where they are passed"]
pub struct ChildRules<C> {
    pub(super) ignored: Vec<String>,
    pub(super) adopts_orphans: bool,
    pub(super) recreate_if: Option<Differs<C>>,
}

impl<C> ChildRules<C> {
    /// Creates the default rules.
    pub fn new() -> Self {
        Self {
            ignored: Vec::new(),
            adopts_orphans: false,
            recreate_if: None,
        }
    }

    /// Sets the field at this JSON pointer only when the child is created, and leaves it to others afterwards.
    pub fn ignore(mut self, pointer: impl Into<String>) -> Self {
        self.ignored.push(pointer.into());
        self
    }

    /// Takes over an object of this name that no controller owns. Default: such an object is foreign.
    pub fn adopt_orphans(mut self) -> Self {
        self.adopts_orphans = true;
        self
    }

    /// Deletes the child, and creates it again, if this returns true for the live and the desired child. Default: never.
    pub fn recreate_if(mut self, differs: impl Fn(&C, &C) -> bool + Send + Sync + 'static) -> Self {
        self.recreate_if = Some(Arc::new(differs));
        self
    }
}

impl<C> Default for ChildRules<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> fmt::Debug for ChildRules<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildRules")
            .field("ignored", &self.ignored)
            .field("adopts_orphans", &self.adopts_orphans)
            .field("recreates", &self.recreate_if.is_some())
            .finish()
    }
}
