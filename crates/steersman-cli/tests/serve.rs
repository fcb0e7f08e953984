// SPDX-License-Identifier: Apache-2.0
//! The API server alone: manifests, requests, and errors that say what to do.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod command;

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt, path::Path};

use command::{Place, said};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
};
use rustix::process::Signal;

const DEFINITION: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  names: {kind: Boat, plural: boats, singular: boat}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {oars: {type: integer}}}}
";

/// The file lists the object before its namespace, and both before the CRD.
const SAMPLES: &str = "
apiVersion: example.com/v1
kind: Boat
metadata: {name: dinghy, namespace: harbour}
spec: {oars: 2}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: harbour}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: tides}, data: {high: noon}}
---
";

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.unwrap()).unwrap()
}

#[tokio::test]
async fn serve_loads_manifests_and_prints_requests() {
    let place = Place::new();
    fs::create_dir(place.path().join("manifests")).unwrap();
    place.file("manifests/1-samples.yaml", SAMPLES);
    place.file("manifests/2-crd.yml", DEFINITION);
    place.file("manifests/README.md", "not a manifest");
    let (manifests, kubeconfig) = (place.path().join("manifests"), place.path().join("kubeconfig"));
    let arguments = [
        "serve",
        "--watch",
        "--load",
        manifests.to_str().unwrap(),
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
    ];
    let mut server = place.start(&arguments);
    server.says(kubeconfig.to_str().unwrap());
    server.complains("loaded  4 objects");

    let client = client(&kubeconfig).await;
    let boats = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Boat"));
    let boats: Api<DynamicObject> = Api::namespaced_with(client.clone(), "harbour", &boats);
    assert_eq!(boats.get("dinghy").await.unwrap().data["spec"]["oars"], 2);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    assert_eq!(maps.get("tides").await.unwrap().data.unwrap()["high"], "noon");
    let line = server.says("/api/v1/namespaces/default/configmaps/tides");
    assert!(line.starts_with("GET    200"), "{line}");
    maps.get("missing").await.unwrap_err();
    let line = server.says("configmaps/missing");
    assert!(line.starts_with("GET    404"), "{line}");

    let mode = fs::metadata(&kubeconfig).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    server.send(Signal::TERM);
    assert_eq!(server.ended().code(), Some(0));
    assert!(!kubeconfig.exists());
}

#[tokio::test]
async fn serve_removes_its_temporary_kubeconfig() {
    let place = Place::new();
    let mut server = place.start(&["serve"]);
    let kubeconfig = server.says("kubeconfig");
    let client = client(Path::new(&kubeconfig)).await;
    let namespaces: Api<Namespace> = Api::all(client);
    let found = namespaces.list(&ListParams::default()).await.unwrap();
    assert!(
        found
            .iter()
            .any(|namespace| namespace.name_any() == "kube-system")
    );
    // Other credentials are rejected.
    let text = fs::read_to_string(&kubeconfig).unwrap();
    assert!(text.contains("client-certificate-data"), "{text}");
    server.send(Signal::KILL);
    server.ended();
    place.is_left_clean();
}

#[test]
fn serve_overwrites_only_its_own_kubeconfig() {
    let place = Place::new();
    let foreign = place.file("config", "apiVersion: v1\nkind: Config\n");
    let output = place.run(&["serve", "--kubeconfig", foreign.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("was not written by `steersman`"),
        "{}",
        said(&output)
    );
    assert_eq!(
        fs::read_to_string(&foreign).unwrap(),
        "apiVersion: v1\nkind: Config\n"
    );

    let ours = place.path().join("ours");
    for _ in 0..2 {
        let mut server = place.start(&["serve", "--kubeconfig", ours.to_str().unwrap()]);
        server.says("ours");
        // It cannot remove its file.
        server.send(Signal::KILL);
        server.ended();
        assert!(ours.exists());
    }
}

#[test]
fn errors_name_the_cause_and_the_next_step() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    place.file("broken.yaml", "a: [");
    place.file("odd.yaml", "kind: ConfigMap");
    place.file(
        "unknown.yaml",
        "{apiVersion: example.com/v1, kind: Boat, metadata: {name: dinghy}}",
    );
    place.file(
        "refused.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: UPPER}}",
    );
    for (arguments, parts) in [
        (
            vec!["--port", port.as_str()],
            ["is taken by another program", "--port"],
        ),
        (
            vec!["--kubeconfig", "/nowhere/config"],
            ["/nowhere/config", "directory that is writable"],
        ),
        (
            vec!["--kubeconfig", "/"],
            ["/ exists and cannot be read", "name another path"],
        ),
        (
            vec!["--load", "/nowhere.yaml"],
            [
                "/nowhere.yaml cannot be read",
                "say the path of a file or directory",
            ],
        ),
        (
            vec!["--load", &path("broken.yaml")],
            ["broken.yaml is neither YAML nor JSON", "line"],
        ),
        (
            vec!["--load", &path("odd.yaml")],
            ["document 1 has no `apiVersion`", "is it a manifest?"],
        ),
        (
            vec!["--load", &path("unknown.yaml")],
            ["Boat `dinghy`", "load its CRD, too"],
        ),
        (
            vec!["--load", &path("refused.yaml")],
            ["does not take ConfigMap `UPPER`", "because: "],
        ),
    ] {
        let mut all = vec!["serve"];
        all.extend(arguments);
        let output = place.run(&all);
        let error = said(&output);
        assert_eq!(output.status.code(), Some(1), "{all:?}: {error}");
        assert!(error.starts_with("error: "), "{error}");
        for part in parts {
            assert!(error.contains(part), "{all:?}: `{part}` is not in {error}");
        }
        assert!(output.stdout.is_empty(), "{all:?}");
        assert!(place.leftovers().is_empty(), "{all:?}");
    }
}
