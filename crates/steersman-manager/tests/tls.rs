// SPDX-License-Identifier: Apache-2.0
//! Certificates, made here or read from files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use http::Request;
use http_body_util::Full;
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName},
};
use steersman_core::TestClock;
use steersman_manager::{MetricsRegistry, MetricsServer, Tls};
use support::{HERE, Reply, Running, careless::careless, over, waits_for};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const LOOK: Duration = Duration::from_secs(10);

fn certificate() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

/// `tls.crt` and `tls.key`.
struct Files(TempDir);

impl Files {
    fn with(made: &CertifiedKey<KeyPair>) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write(made);
        files
    }

    fn write(&self, made: &CertifiedKey<KeyPair>) {
        fs::write(self.path("tls.crt"), made.cert.pem()).unwrap();
        fs::write(self.path("tls.key"), made.signing_key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn tls(&self) -> Tls {
        Tls::files(self.path("tls.crt"), self.path("tls.key")).unwrap()
    }
}

fn serve(tls: Tls, clock: &TestClock) -> Running {
    let server = MetricsServer::new(MetricsRegistry::new())
        .address(HERE)
        .tls(tls)
        .clock(Arc::new(clock.clone()));
    Running::start(server.bind().unwrap())
}

fn trusting(certificate: &CertificateDer<'static>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// Asks for metrics over TLS, if the certificate is accepted.
async fn ask(running: &Running, connector: &TlsConnector) -> Option<Reply> {
    let stream = TcpStream::connect(running.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, stream).await.ok()?;
    Some(over(stream, Request::get("/metrics").body(Full::default()).unwrap()).await)
}

async fn accepts(running: &Running, made: &CertifiedKey<KeyPair>) -> bool {
    ask(running, &trusting(made.cert.der())).await.is_some()
}

/// Lets the server look at its files, and waits until it has.
async fn look(clock: &TestClock) {
    waits_for(clock, LOOK).await;
    clock.advance(LOOK);
    waits_for(clock, LOOK).await;
}

#[tokio::test]
async fn a_self_signed_certificate_is_enough_for_who_does_not_verify() {
    let running = serve(Tls::self_signed().unwrap(), &TestClock::new());
    assert_eq!(ask(&running, &careless()).await.unwrap().status, 200);
    assert!(!accepts(&running, &certificate()).await);
}

#[tokio::test]
async fn a_given_configuration_is_used() {
    let made = certificate();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let running = serve(Tls::config(Arc::new(config)), &TestClock::new());
    assert!(accepts(&running, &made).await);
}

#[tokio::test]
async fn guarantee_1_files_that_change_are_used() {
    let (old, new, clock) = (certificate(), certificate(), TestClock::new());
    let files = Files::with(&old);
    let running = serve(files.tls(), &clock);
    assert!(accepts(&running, &old).await);
    files.write(&new);
    look(&clock).await;
    assert!(accepts(&running, &new).await);
    assert!(!accepts(&running, &old).await);
    let metrics = ask(&running, &trusting(new.cert.der())).await.unwrap().body;
    assert!(
        metrics.contains("\ncertwatcher_read_certificate_total 2\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("\ncertwatcher_read_certificate_errors_total 0\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn guarantee_2_files_that_make_no_sense_change_nothing() {
    let (old, new, clock) = (certificate(), certificate(), TestClock::new());
    let files = Files::with(&old);
    let running = serve(files.tls(), &clock);
    // The certificate is new, the key is not yet.
    fs::write(files.path("tls.crt"), new.cert.pem()).unwrap();
    look(&clock).await;
    assert!(accepts(&running, &old).await);
    fs::remove_file(files.path("tls.crt")).unwrap();
    look(&clock).await;
    assert!(accepts(&running, &old).await);
    files.write(&new);
    look(&clock).await;
    assert!(accepts(&running, &new).await);
    let metrics = ask(&running, &trusting(new.cert.der())).await.unwrap().body;
    assert!(
        metrics.contains("\ncertwatcher_read_certificate_errors_total 2\n"),
        "{metrics}"
    );
}

#[test]
fn files_that_are_not_there_or_wrong_are_an_error_that_names_them() {
    let files = Files::with(&certificate());
    let (certificate_file, key_file) = (files.path("tls.crt"), files.path("tls.key"));
    let missing = files.path("missing");
    let error = Tls::files(&missing, &key_file).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read {}", missing.display()));
    let error = Tls::files(&certificate_file, &certificate_file).unwrap_err();
    let expected = format!(
        "{} has no PEM block of the kind PRIVATE KEY",
        certificate_file.display()
    );
    assert_eq!(error.to_string(), expected);
    let error = Tls::files(&key_file, &key_file).unwrap_err();
    assert!(error.to_string().contains("tls.key"), "{error}");
    fs::write(&key_file, certificate().signing_key.serialize_pem()).unwrap();
    let error = Tls::files(&certificate_file, &key_file).unwrap_err();
    assert!(error.to_string().ends_with("cannot be used together"), "{error}");
}

#[test]
fn keys_show_in_no_output() {
    let made = certificate();
    let text = format!("{:?}", Files::with(&made).tls());
    assert!(text.contains("tls.key") && !text.contains("PRIVATE"), "{text}");
}
