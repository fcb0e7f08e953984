// SPDX-License-Identifier: Apache-2.0
//! Client certificates and certificate authorities that change.

use std::path::Path;

use k8s_openapi::api::{authentication::v1::SelfSubjectReview, core::v1::ConfigMap};
use kube::{Api, Config, api::PostParams};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::{Value, json};
use steersman_apiserver::{Identity, Listener};
use steersman_cache::{InformerOptions, Scope};
use steersman_cluster::{Cluster, ConnectError};
use steersman_core::{ObjectKey, TestClock, error_chain};
use steersman_testing::{Fixture, OwnServerOptions, RealServer, eventually};

use crate::support::object;

/// A server that accepts client certificates.
enum Server {
    Embedded(Listener),
    Real {
        server: Box<RealServer>,
        issuer: Box<CertifiedIssuer<'static, KeyPair>>,
        _directory: tempfile::TempDir,
    },
}

fn authority(name: &str, end: Option<i32>) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(year) = end {
        params.not_before = rcgen::date_time_ymd(year - 1, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
    }
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Server {
    async fn start(fixture: &Fixture) -> Self {
        if let Some(server) = fixture.embedded_server() {
            return Self::Embedded(server.server().listen(([127, 0, 0, 1], 0)).await.unwrap());
        }
        let (issuer, directory) = (authority("clients", None), tempfile::tempdir().unwrap());
        let file = directory.path().join("ca.crt");
        std::fs::write(&file, issuer.pem()).unwrap();
        let flag = format!("--client-ca-file={}", file.display());
        let server = RealServer::builder().flag(flag).start().await.unwrap();
        Self::Real {
            server: Box::new(server),
            issuer: Box::new(issuer),
            _directory: directory,
        }
    }

    /// Writes the certificate and the key of an administrator into files.
    fn issue(&self, name: &str, directory: &Path) -> (String, String) {
        let (certificate, key) = match self {
            Self::Embedded(listener) => {
                let identity = Identity::user(name).group("system:masters");
                let config: Value =
                    serde_saphyr::from_str(&listener.kubeconfig_for(identity).unwrap()).unwrap();
                let user = &config["users"][0]["user"];
                let text = |field: &str| {
                    let data: k8s_openapi::ByteString = object(user[field].clone());
                    String::from_utf8(data.0).unwrap()
                };
                (text("client-certificate-data"), text("client-key-data"))
            }
            Self::Real { issuer, .. } => {
                let mut params = CertificateParams::default();
                params.distinguished_name.push(DnType::CommonName, name);
                params
                    .distinguished_name
                    .push(DnType::OrganizationName, "system:masters");
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                let key = KeyPair::generate().unwrap();
                let certificate = params.signed_by(&key, &**issuer).unwrap();
                (certificate.pem(), key.serialize_pem())
            }
        };
        std::fs::write(directory.join("tls.crt"), &certificate).unwrap();
        std::fs::write(directory.join("tls.key"), &key).unwrap();
        (certificate, key)
    }

    fn ca_pem(&self) -> &str {
        match self {
            Self::Embedded(listener) => listener.ca_pem(),
            Self::Real { server, .. } => server.endpoint().ca_pem(),
        }
    }

    /// A kubeconfig with a file for each certificate, without credentials.
    fn kubeconfig(&self, directory: &Path, user: &Value) -> String {
        let url = match self {
            Self::Embedded(listener) => listener.url(),
            Self::Real { server, .. } => server.endpoint().url().to_owned(),
        };
        let ca = directory.join("ca.crt");
        std::fs::write(&ca, self.ca_pem()).unwrap();
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": ca}}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        })
        .to_string()
    }

    fn by_files(&self, directory: &Path) -> String {
        let files = json!({
            "client-certificate": directory.join("tls.crt"), "client-key": directory.join("tls.key"),
        });
        self.kubeconfig(directory, &files)
    }
}

async fn cluster(kubeconfig: String, clock: Option<&TestClock>) -> Result<Cluster, ConnectError> {
    let here = Scope::all().namespace("default");
    let builder = Cluster::builder("rotating")
        .kubeconfig(kubeconfig)
        .field_manager("tester")
        .cache(|cache| cache.defaults(here, InformerOptions::default()));
    match clock {
        Some(clock) => builder.clock(std::sync::Arc::new(clock.clone())).build().await,
        None => builder.build().await,
    }
}

/// The name of the user that the server sees.
async fn user_name(cluster: &Cluster) -> String {
    let reviews: Api<SelfSubjectReview> = Api::all(cluster.live().kube());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .unwrap();
    review.status.unwrap().user_info.unwrap().username.unwrap()
}

fn map(name: &str) -> ConfigMap {
    object(json!({"metadata": {"name": name, "namespace": "default"}}))
}

/// Opens a watch, lets `rotate` change the credentials to those of `second`, and checks that the watch goes on.
async fn rotates_without_closing_the_watch(cluster: &Cluster, rotate: impl FnOnce()) {
    let client = cluster.client();
    assert!(
        client
            .get::<ConfigMap>(&ObjectKey::new("default", "late"))
            .await
            .unwrap()
            .is_none()
    );
    let watches = || cluster.cache().informers()[0].stats().watches;
    let before = watches();
    assert_eq!(user_name(cluster).await, "first");
    rotate();
    eventually("the new certificate to be used", async || {
        (user_name(cluster).await == "second").then_some(())
    })
    .await;
    client.create(&map("late")).await.unwrap();
    let informer = cluster.cache().informers()[0].clone();
    eventually("the watch to report the object", async || {
        let stats = informer.stats();
        (stats.events > 0 && stats.objects > 0).then_some(())
    })
    .await;
    assert_eq!(watches(), before, "a rotation closes no watch");
    cluster
        .live()
        .delete::<ConfigMap>(&ObjectKey::new("default", "late"), Default::default())
        .await
        .unwrap();
}

// C2
#[steersman_testing::test]
async fn a_changed_client_certificate_is_used_without_closing_watches(fixture: Fixture) {
    let (server, clock, directory) = (
        Server::start(&fixture).await,
        TestClock::new(),
        tempfile::tempdir().unwrap(),
    );
    server.issue("first", directory.path());
    let cluster = cluster(server.by_files(directory.path()), Some(&clock))
        .await
        .unwrap();
    rotates_without_closing_the_watch(&cluster, || {
        server.issue("second", directory.path());
        clock.advance(std::time::Duration::from_secs(60));
    })
    .await;
    // A file that is not a certificate does not replace one that works.
    std::fs::write(directory.path().join("tls.crt"), "no certificate").unwrap();
    clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(user_name(&cluster).await, "second");
}

// C2
#[steersman_testing::test]
async fn a_changed_certificate_of_an_exec_plugin_is_used(fixture: Fixture) {
    let (server, clock, directory) = (
        Server::start(&fixture).await,
        TestClock::new(),
        tempfile::tempdir().unwrap(),
    );
    let path = directory.path();
    let write = |name: &str| {
        let (certificate, key) = server.issue(name, path);
        let end = jiff::Timestamp::try_from(steersman_core::Clock::wall(&clock)).unwrap();
        let end = end + jiff::SignedDuration::from_secs(600);
        let status = json!({
            "clientCertificateData": certificate, "clientKeyData": key, "expirationTimestamp": end.to_string(),
        });
        std::fs::write(path.join("credential"), json!({"status": status}).to_string()).unwrap();
    };
    write("first");
    let exec = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "cat", "args": [path.join("credential")],
    }});
    let cluster = cluster(server.kubeconfig(path, &exec), Some(&clock))
        .await
        .unwrap();
    rotates_without_closing_the_watch(&cluster, || {
        write("second");
        clock.advance(std::time::Duration::from_secs(541));
    })
    .await;
}

// C2
#[steersman_testing::test]
async fn a_certificate_without_its_key_is_an_error(fixture: Fixture) {
    let (server, directory) = (Server::start(&fixture).await, tempfile::tempdir().unwrap());
    let path = directory.path();
    server.issue("first", path);
    let file = path.join("tls.crt");
    let user = json!({"client-certificate": file});
    let error = cluster(server.kubeconfig(path, &user), None).await.unwrap_err();
    let text = error_chain(&error);
    let expected = format!(
        "the client certificate {} has no key; set `client-key`",
        file.display()
    );
    assert!(text.contains(&expected), "{text}");
    std::fs::remove_file(path.join("tls.key")).unwrap();
    let error = cluster(server.by_files(path), None).await.unwrap_err();
    let text = error_chain(&error);
    assert!(
        text.contains(&format!("cannot read {}", path.join("tls.key").display())),
        "{text}"
    );
    assert!(matches!(error, ConnectError::Certificate { .. }), "{error:?}");
    server.issue("first", path);
    let cluster = cluster(server.by_files(path), None).await.unwrap();
    assert_eq!(user_name(&cluster).await, "first");
}

// C2
#[steersman_testing::test]
async fn a_wrong_or_expired_ca_is_named_and_a_repaired_one_is_used(fixture: Fixture) {
    let (server, directory) = (Server::start(&fixture).await, tempfile::tempdir().unwrap());
    let path = directory.path();
    server.issue("first", path);
    let (kubeconfig, ca) = (server.by_files(path), path.join("ca.crt"));
    let named = format!("the CA file {}", ca.display());

    std::fs::write(&ca, authority("expired", Some(2020)).pem()).unwrap();
    let error = cluster(kubeconfig.clone(), None).await.unwrap_err();
    let text = error_chain(&error);
    assert!(
        text.contains(&format!("{named} has expired; replace it")),
        "{text}"
    );

    std::fs::write(&ca, authority("other", None).pem()).unwrap();
    let cluster = cluster(kubeconfig, None).await.unwrap();
    let get = async || {
        cluster
            .live()
            .get::<ConfigMap>(&ObjectKey::new("default", "a"))
            .await
    };
    let text = error_chain(&get().await.unwrap_err());
    let expected =
        format!("the server certificate cannot be verified with {named}: invalid peer certificate");
    assert!(text.contains(&expected), "{text}");
    let state = cluster.state().to_string();
    assert!(state.contains(&expected), "{state}");
    // An expired one does not help; the right one does, without a restart.
    std::fs::write(&ca, authority("expired", Some(2020)).pem()).unwrap();
    assert!(get().await.is_err());
    std::fs::write(&ca, server.ca_pem()).unwrap();
    assert!(get().await.unwrap().is_none());
}

// C2
#[steersman_testing::test]
async fn a_rejected_token_of_the_configuration_is_named(fixture: Fixture) {
    let own = fixture.own_server(OwnServerOptions::default()).await;
    let mut config: Config = own.endpoint().config(own.admin()).unwrap();
    config.auth_info = object(json!({"token": "no-such-token"}));
    let cluster = Cluster::builder("rejected").config(config).build().await.unwrap();
    let error = cluster
        .live()
        .get::<ConfigMap>(&ObjectKey::new("default", "a"))
        .await
        .unwrap_err();
    assert_eq!(error.status().unwrap().code, 401);
    assert!(
        error
            .to_string()
            .ends_with("check the token of the configuration"),
        "{error}"
    );
}
