// SPDX-License-Identifier: Apache-2.0
//! The protocol between drivers and participants of benchmarks; `bench/README.md` describes it.
//!
//! * [`objects`]: the Pods and Widgets that are measured with.
//! * [`driver`]: the command line of a driver, and a participant as its child process.
//! * [`participant`]: parameters, output and measurements of a participant.
//! * [`rounds`]: the participant's side of the benchmark `kit`.
//! * `sites`: the children of a parent in that benchmark; with the feature of that name.

pub mod driver;
pub mod objects;
pub mod participant;
pub mod rounds;
#[cfg(feature = "sites")]
pub mod sites;
