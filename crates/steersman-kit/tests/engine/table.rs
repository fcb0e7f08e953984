// SPDX-License-Identifier: Apache-2.0
//! Kit reconcilers in table tests.

use kube::Resource;
use serde_json::json;
use steersman_core::Action;
use steersman_kit::managed;
use steersman_runtime::testing::Case;
use steersman_testing::Fixture;

use super::support::*;

// R115
#[steersman_testing::test]
async fn the_table_of_a_kit_reconciler(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let ns = fixture.namespace();
    let widgets = "widgets.kit.steersman.example";
    let reconciler = managed(configured());
    let foreign =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "taken", "namespace": ns}});
    let mut deleting = widget(&fixture, "deleting", "1");
    deleting.meta_mut().finalizers = Some(vec!["example.com/other".to_owned()]);
    let mut deleting = serde_json::to_value(deleting).unwrap();
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let table = [
        Case::new("a deleted object").request(key(&fixture, "gone")),
        Case::new("a new object")
            .given(&widget(&fixture, "new", "1"))
            .writes([
                format!("create configmaps {ns}/new"),
                format!("patch configmaps {ns}/new"),
                format!("apply {widgets} {ns}/new status"),
            ]),
        Case::new("the same object again")
            .request(key(&fixture, "new"))
            .action(Action::await_change()),
        Case::new("an object whose child is foreign")
            .given(&widget(&fixture, "taken", "1"))
            .given(&foreign)
            .writes([format!("apply {widgets} {ns}/taken status")]),
        Case::new("an object under deletion").given(&deleting),
    ];
    for case in table {
        case.check(&stand, &reconciler).await;
    }
}
