// SPDX-License-Identifier: Apache-2.0
//! The parent of the benchmark `kit`: a Site, which has five children.

/// API group of Sites.
pub const GROUP: &str = "bench.example";

/// The annotation that the driver changes in each round.
pub const ROUND: &str = "bench.example/round";
