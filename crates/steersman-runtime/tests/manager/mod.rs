// SPDX-License-Identifier: Apache-2.0
//! Managers, and what they run.

mod barrier;
mod clusters;
mod conditional;
mod conditional_load;
mod conditional_optional;
mod conditional_polled;
mod conditional_stop;
mod conditional_trouble;
mod elected;
mod election;
mod election_simulation;
mod events;
mod fenced;
mod health;
mod kinds;
mod lifecycle;
mod live_config;
mod managed;
mod metrics;
mod own_leases;
mod runs;
mod simulated;
mod start;
mod support;
mod warm;
