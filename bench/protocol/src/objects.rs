// SPDX-License-Identifier: Apache-2.0
//! The objects that are measured with: the same for everybody, each with content of its own.

mod chance;
mod pod;
mod widget;

pub use pod::{pod, pod_key};
pub use widget::{SENT, SENT_PLACEHOLDER, gadget, widget};
