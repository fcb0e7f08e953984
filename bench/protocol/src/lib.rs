// SPDX-License-Identifier: Apache-2.0
//! What the drivers of benchmarks and those who take part agree on; `bench/README.md` says it in words.
//!
//! * [`objects`]: the Pods and Widgets that are measured with.
//! * [`driver`]: the command line of a driver, and a participant as its child process.
//! * [`participant`]: what a participant is told, what it says, and how it measures itself.
//! * [`rounds`]: the same for the benchmark `kit`.

pub mod driver;
pub mod objects;
pub mod participant;
pub mod rounds;
