// SPDX-License-Identifier: Apache-2.0
//! The steps, in the order in which they are shown.

mod clusters;
mod conditional;
mod converge;
mod hand_over;
mod kill;
mod restore;
mod start;

use super::step::Step;

/// All of them.
pub(crate) const STEPS: [&dyn Step; 7] = [
    &start::Start,
    &converge::Converge,
    &restore::Restore,
    &conditional::Conditional,
    &kill::Kill,
    &hand_over::HandOver,
    &clusters::Clusters,
];
