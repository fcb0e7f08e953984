// SPDX-License-Identifier: Apache-2.0
//! The test in the README.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};

#[steersman_testing::test]
async fn a_client_sees_the_injected_error_once(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let _fault = proxy.inject(Matching::reads().path("/configmaps").first(1), Fault::answer(503));
    let maps: Api<ConfigMap> = Api::namespaced(proxy.client(fixture.admin()).unwrap(), fixture.namespace());
    maps.list(&ListParams::default()).await.unwrap_err(); // the injected 503
    maps.list(&ListParams::default()).await.unwrap(); // the server's own answer
    assert_eq!(proxy.exchanges().len(), 2);
}
