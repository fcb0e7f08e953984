// SPDX-License-Identifier: Apache-2.0
//! Controllers, without a manager.

mod async_mapping;
mod cached_reads;
mod clusters;
mod conditional;
mod indexes;
mod metrics;
mod objects;
mod outcome;
mod primary_kinds;
mod references;
mod run;
mod sources;
mod standby;
mod support;
mod table;
mod terms;
