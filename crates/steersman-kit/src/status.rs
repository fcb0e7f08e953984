// SPDX-License-Identifier: Apache-2.0
//! The parts of a status that the kit sets: conditions and the observed generation.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{ConditionSet, Conditions, NoConditions};

/// A status with conditions: a struct with `#[derive(Status)]`.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
/// use steersman_kit::{ConditionSet, Conditions, Status};
///
/// #[derive(ConditionSet, Clone, Copy, Debug)]
/// enum Cond {
///     Available,
/// }
///
/// #[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
/// #[serde(rename_all = "camelCase", default)]
/// struct WidgetStatus {
///     ready_replicas: i32,
///     observed_generation: Option<i64>,
///     conditions: Conditions<Cond>,
/// }
/// ```
///
/// A controller that adds conditions to the kind of another controller declares a status with only its own fields, without
/// `observed_generation`. For a kind of Kubernetes itself, name the kind: `#[status(of(Deployment))]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a status",
    label = "add `#[derive(Status)]` to `{Self}`",
    note = "a status has a field `conditions: Conditions<C>` and optionally `observed_generation: Option<i64>` and \
            `last_handled_reconcile_at: Option<String>`"
)]
pub trait StatusParts: Default + Clone + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// Set of its conditions.
    type Set: ConditionSet;
    /// False if the status is never written. Default: true.
    const WRITTEN: bool = true;

    /// Returns its conditions.
    fn conditions(&self) -> &Conditions<Self::Set>;

    /// Returns its conditions, to be changed.
    fn conditions_mut(&mut self) -> &mut Conditions<Self::Set>;

    /// Sets the observed generation, if the status has that field.
    fn set_observed_generation(&mut self, generation: Option<i64>);

    /// Returns the last handled token of [`Switches::RECONCILE_NOW`](crate::Switches::RECONCILE_NOW), if the status has the
    /// field `last_handled_reconcile_at: Option<String>`.
    fn last_handled_reconcile_at(&self) -> Option<&str> {
        None
    }

    /// Sets the last handled token, if the status has that field.
    fn set_last_handled_reconcile_at(&mut self, _token: &str) {}
}

/// A status that objects of `K` can have: the status of `K`, or the part of it that one controller sets.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the status of a `{K}`",
    label = "add `#[derive(Status)]` to `{Self}`, and `status = \"…\"` to the `#[kube(…)]` of `{K}`",
    note = "for a kind of Kubernetes itself, add `#[status(of({K}))]` to the status",
    note = "for a kind without a status, use `type Status = NoStatus`"
)]
pub trait StatusFor<K>: StatusParts {}

/// Status of kinds that have none, such as ConfigMaps. It is never written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NoStatus {
    #[serde(skip)]
    conditions: Conditions<NoConditions>,
}

impl StatusParts for NoStatus {
    type Set = NoConditions;
    const WRITTEN: bool = false;

    fn conditions(&self) -> &Conditions<NoConditions> {
        &self.conditions
    }

    fn conditions_mut(&mut self) -> &mut Conditions<NoConditions> {
        &mut self.conditions
    }

    fn set_observed_generation(&mut self, _: Option<i64>) {}
}

impl<K> StatusFor<K> for NoStatus {}
