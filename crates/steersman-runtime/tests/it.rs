// SPDX-License-Identifier: Apache-2.0
//! The tests of the crate in one binary, which links once. Tests that measure or replace something of their process, or run
//! themselves again as another process, are binaries of their own.

mod controller;
mod manager;
