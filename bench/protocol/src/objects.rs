// SPDX-License-Identifier: Apache-2.0
//! Objects of the benchmarks: the same for all participants, each with unique content.

mod chance;
mod pod;
mod widget;

pub use pod::{pod, pod_key};
pub use widget::{SENT, SENT_PLACEHOLDER, gadget, widget};
