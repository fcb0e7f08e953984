// SPDX-License-Identifier: Apache-2.0
//! Steps of the demo, in the order in which they run.

mod clusters;
mod conditional;
mod converge;
mod hand_over;
mod kill;
mod restore;
mod start;

use super::step::Step;

/// All steps.
pub(crate) const STEPS: [&dyn Step; 7] = [
    &start::Start,
    &converge::Converge,
    &restore::Restore,
    &conditional::Conditional,
    &kill::Kill,
    &hand_over::HandOver,
    &clusters::Clusters,
];
