// SPDX-License-Identifier: Apache-2.0
//! Every example runs as a program and says what it is meant to show.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    fs,
    process::{Child, Command, Output, Stdio},
};

use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{ConfigMap, Service},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, CustomResourceExt, ResourceExt,
    api::{DeleteParams, PostParams},
    core::NamespaceResourceScope,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use steersman_examples::{
    certificates::{Certificate, CertificateSpec},
    handlers, tags,
};
use steersman_testing::Fixture;
use support::eventually;

fn wire_shows_a_cut_watch_and_a_lost_answer(arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_wire")).args(arguments).output();
    let output = output.expect("the example was built with this test");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("the connection broke"), "{text}");
    assert!(text.contains("the object is on the server: true"), "{text}");
}

mod wire {
    use super::*;

    #[test]
    fn on_embedded() {
        wire_shows_a_cut_watch_and_a_lost_answer(&[]);
    }

    #[test]
    fn on_real() {
        wire_shows_a_cut_watch_and_a_lost_answer(&["--real"]);
    }
}

/// An example that runs until it is stopped. A failed test leaves none behind.
struct Program {
    child: Option<Child>,
    _kubeconfig: tempfile::TempPath,
}

impl Program {
    /// Runs it as one would who has a kubeconfig.
    fn start(fixture: &Fixture, path: &str, arguments: &[&str]) -> Self {
        let kubeconfig = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        fs::write(&kubeconfig, fixture.endpoint().kubeconfig(fixture.admin())).unwrap();
        let child = Command::new(path)
            .args(arguments)
            .env("KUBECONFIG", &kubeconfig)
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            child: Some(child),
            _kubeconfig: kubeconfig,
        }
    }

    /// Tells it to end, and waits for that.
    fn terminate(mut self) -> Output {
        let child = self.child.take().unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        child.wait_with_output().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Creates an object named `a`, and waits until it has a label.
async fn gets_label<K>(fixture: &Fixture, object: serde_json::Value, label: &str, value: &str)
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let objects: Api<K> = Api::namespaced(fixture.client(), fixture.namespace());
    let object = serde_json::from_value(object).unwrap();
    objects.create(&PostParams::default(), &object).await.unwrap();
    eventually(async || {
        let found = objects.get("a").await.unwrap();
        found.labels().get(label).map(String::as_str) == Some(value)
    })
    .await;
}

// R45, R76, R159
#[steersman_testing::test]
async fn a_program_works_until_it_is_stopped(fixture: Fixture) {
    let program = Program::start(&fixture, env!("CARGO_BIN_EXE_handlers"), &[]);
    let service = json!({
        "metadata": {"name": "a", "labels": {handlers::HANDLED: "yes"}},
        "spec": {"ports": [{"port": 80}]},
    });
    gets_label::<Service>(&fixture, service, handlers::PORTS, "1").await;
    let output = program.terminate();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains(r#""signal":"SIGTERM""#), "{log}");
    // It sees the objects of other tests, too.
    let is_about_another =
        |line: &str| line.contains(r#""key":""#) && !line.contains(&format!("\"{}/", fixture.namespace()));
    let mut errors = log.lines().filter(|line| line.contains(r#""level":"error""#));
    assert!(errors.all(is_about_another), "{log}");
}

#[steersman_testing::test]
async fn a_kind_can_be_named_on_the_command_line(fixture: Fixture) {
    let program = Program::start(&fixture, env!("CARGO_BIN_EXE_tags"), &["", "ConfigMap", "front"]);
    let map = json!({"metadata": {"name": "a"}});
    gets_label::<ConfigMap>(&fixture, map, tags::LABEL, "front").await;
    assert_eq!(program.terminate().status.code(), Some(0));
}

/// Which of two replicas holds the lease.
async fn leader(fixture: &Fixture) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(fixture.client(), fixture.namespace());
    let lease = leases.get_opt("certificates-example").await.unwrap()?;
    lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
}

// R11, R15, R29, R38, R44
#[steersman_testing::test]
async fn replicas_follow_a_kind_that_is_installed_while_they_run(fixture: Fixture) {
    let start = || {
        Program::start(
            &fixture,
            env!("CARGO_BIN_EXE_certificates"),
            &[fixture.namespace()],
        )
    };
    let (first, second) = (start(), start());
    eventually(async || leader(&fixture).await.is_some()).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client());
    let definition = Certificate::crd();
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .unwrap();
    let certificates: Api<Certificate> = Api::namespaced(fixture.client(), fixture.namespace());
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client(), fixture.namespace());
    let hosts_of = async |name: &str| {
        let map = maps.get_opt(name).await.unwrap();
        map.and_then(|map| map.data?.get("hosts").cloned())
    };
    let create = async |name: &str| {
        let spec = CertificateSpec {
            dns_names: vec!["a.example".to_owned(), "b.example".to_owned()],
        };
        let certificate = Certificate::new(name, spec);
        let created = certificates.create(&PostParams::default(), &certificate).await;
        created.is_ok()
    };
    eventually(async || create("front").await).await;
    eventually(async || hosts_of("front").await.as_deref() == Some("a.example b.example")).await;
    // One of them is enough.
    assert_eq!(first.terminate().status.code(), Some(0));
    assert!(create("back").await);
    eventually(async || hosts_of("back").await.is_some()).await;
    let name = definition.metadata.name.unwrap();
    definitions.delete(&name, &DeleteParams::default()).await.unwrap();
    eventually(async || definitions.get_opt(&name).await.unwrap().is_none()).await;
    let output = second.terminate();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains("run condition is true; starting runnable"), "{log}");
}

#[test]
fn without_a_cluster_a_program_prints_advice() {
    for program in [
        env!("CARGO_BIN_EXE_site"),
        env!("CARGO_BIN_EXE_memcached"),
        env!("CARGO_BIN_EXE_cron_job"),
        env!("CARGO_BIN_EXE_tenants"),
    ] {
        let output = Command::new(program)
            .env("KUBECONFIG", "/nowhere")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{program}: {said}");
        assert!(said.contains("KUBECONFIG"), "{program}: {said}");
    }
}

#[test]
fn a_program_shows_the_definitions_of_its_kinds() {
    let output = Command::new(env!("CARGO_BIN_EXE_site"))
        .arg("crds")
        .env("POD_NAMESPACE", "not-used-by-this-command")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["webs.examples.steersman.dev", "banners.examples.steersman.dev"] {
        assert!(text.contains(&format!("  name: {name}\n")), "{text}");
    }
}

#[test]
fn the_mirror_requires_two_contexts() {
    let output = Command::new(env!("CARGO_BIN_EXE_mirror")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("two contexts"));
}
