// SPDX-License-Identifier: Apache-2.0
//! The admission plugin `ValidatingAdmissionPolicy`.

pub(crate) mod matching;
