// SPDX-License-Identifier: Apache-2.0
//! A CRD with two versions, whose objects are read and written at both.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use steersman_testing::{Fixture, eventually};
use steersman_webhook::{Conversion, testing::round_trips};

use super::support::*;

const GROUP: &str = "conversion.steersman.example";

mod v1alpha1 {
    use kube::CustomResource;
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
    #[kube(
        group = "conversion.steersman.example",
        version = "v1alpha1",
        kind = "Site",
        namespaced
    )]
    pub(crate) struct SiteSpec {
        /// Host and port.
        pub(crate) target: String,
        #[serde(default)]
        pub(crate) size: i32,
    }
}

mod v1beta1 {
    use kube::CustomResource;
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
    #[kube(
        group = "conversion.steersman.example",
        version = "v1beta1",
        kind = "Site",
        namespaced
    )]
    pub(crate) struct SiteSpec {
        pub(crate) host: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub(crate) port: Option<String>,
        #[serde(default)]
        pub(crate) replicas: i32,
    }
}

impl From<v1alpha1::Site> for v1beta1::Site {
    fn from(old: v1alpha1::Site) -> Self {
        let (host, port) = match old.spec.target.rsplit_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port.to_owned())),
            None => (old.spec.target, None),
        };
        Self {
            metadata: old.metadata,
            spec: v1beta1::SiteSpec {
                host,
                port,
                replicas: old.spec.size,
            },
        }
    }
}

impl From<v1beta1::Site> for v1alpha1::Site {
    fn from(new: v1beta1::Site) -> Self {
        let port = new.spec.port.map(|port| format!(":{port}")).unwrap_or_default();
        Self {
            metadata: new.metadata,
            spec: v1alpha1::SiteSpec {
                target: format!("{}{port}", new.spec.host),
                size: new.spec.replicas,
            },
        }
    }
}

/// Both versions in one CRD; the newer one is stored.
fn crd() -> CustomResourceDefinition {
    use kube::CustomResourceExt;
    let mut crd = v1beta1::Site::crd();
    let mut old = v1alpha1::Site::crd().spec.versions.remove(0);
    old.storage = false;
    crd.spec.versions.push(old);
    crd
}

fn site(version: &str, name: &str, spec: &Value) -> DynamicObject {
    let metadata = json!({"name": name, "labels": {"kept": "yes"}});
    object(
        json!({"apiVersion": format!("{GROUP}/{version}"), "kind": "Site", "metadata": metadata, "spec": spec}),
    )
}

// R107
#[steersman_testing::test]
async fn objects_are_read_and_written_at_both_versions(fixture: Fixture) {
    fixture.install(&crd()).await;
    let operator = Operator::new(fixture).await;
    let conversion = Conversion::hub::<v1beta1::Site>().spoke::<v1alpha1::Site>();
    let replica = operator.replica(operator.webhooks().converts(conversion)).await;
    let sites = |version: &str| -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, version, "Site"));
        Api::namespaced_with(operator.fixture.client(), operator.fixture.namespace(), &resource)
    };
    let (old, new) = (sites("v1alpha1"), sites("v1beta1"));
    let create = PostParams::default();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually("the server converts", async || {
        let probe = site("v1alpha1", "probe", &json!({"target": "a:1", "size": 1}));
        old.create(&dry_run, &probe).await.ok()
    })
    .await;
    let written = site("v1alpha1", "old", &json!({"target": "a.example:80", "size": 3}));
    let created = old.create(&create, &written).await.unwrap();
    assert_eq!(created.data["spec"], json!({"target": "a.example:80", "size": 3}));
    let read = new.get("old").await.unwrap();
    assert_eq!(
        read.data["spec"],
        json!({"host": "a.example", "port": "80", "replicas": 3})
    );
    assert_eq!(read.metadata.labels.as_ref().unwrap()["kept"], "yes");
    let written = site("v1beta1", "new", &json!({"host": "b.example", "replicas": 1}));
    new.create(&create, &written).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"size": 5}}));
    old.patch("new", &PatchParams::default(), &patch).await.unwrap();
    let listed = old.list(&ListParams::default()).await.unwrap();
    let mut specs: Vec<&Value> = listed.items.iter().map(|site| &site.data["spec"]).collect();
    specs.sort_by_key(|spec| spec["target"].as_str().map(str::to_owned));
    assert_eq!(
        specs,
        [
            &json!({"target": "a.example:80", "size": 3}),
            &json!({"target": "b.example", "size": 5})
        ]
    );
    assert_eq!(new.get("new").await.unwrap().data["spec"]["replicas"], 5);
    assert!(replica.metric("controller_runtime_webhook_requests_total{code=\"200\",webhook=\"/convert\"}"));
    // Other tests do not need it, and without a replica it could not be removed with its objects.
    let none = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
    let crds: Api<CustomResourceDefinition> = Api::all(operator.fixture.client());
    replica.stop().await;
    crds.patch(
        &format!("sites.{GROUP}"),
        &PatchParams::default(),
        &Patch::Merge(none),
    )
    .await
    .unwrap();
}

// R107
#[test]
fn a_generated_test_finds_a_lossy_conversion() {
    let error = round_trips::<v1beta1::Site, v1alpha1::Site>(200, 1)
        .unwrap_err()
        .to_string();
    // A host can be empty or contain anything in the schema, so `host` and `port` cannot be told apart.
    assert!(error.contains("v1beta1") && error.contains("before: "), "{error}");
}
