// SPDX-License-Identifier: Apache-2.0
//! What servers say of themselves.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use steersman_testing::Fixture;

#[steersman_testing::test]
async fn names_the_platform_like_go(fixture: Fixture) {
    let version = fixture.client().apiserver_version().await.unwrap();
    let (system, architecture) = version.platform.split_once('/').unwrap();
    assert!(["linux", "darwin", "windows"].contains(&system), "{system}");
    assert!(["amd64", "arm64"].contains(&architecture), "{architecture}");
}
