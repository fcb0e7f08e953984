// SPDX-License-Identifier: Apache-2.0
//! Certificates: generated, from files, and reloaded.

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
use steersman_endpoints::{MetricsRegistry, MetricsServer, Tls};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::{HERE, Reply, Running, next_deadline_in, over, tls_client::unverified};

const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

fn certificate() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

/// `tls.crt` and `tls.key`.
struct Files(TempDir);

impl Files {
    fn with(generated: &CertifiedKey<KeyPair>) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write(generated);
        files
    }

    fn write(&self, generated: &CertifiedKey<KeyPair>) {
        fs::write(self.path("tls.crt"), generated.cert.pem()).unwrap();
        fs::write(self.path("tls.key"), generated.signing_key.serialize_pem()).unwrap();
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

/// Gets the metrics over TLS. Returns `None` if the client rejects the certificate.
async fn scrape(running: &Running, connector: &TlsConnector) -> Option<Reply> {
    let stream = TcpStream::connect(running.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, stream).await.ok()?;
    Some(over(stream, Request::get("/metrics").body(Full::default()).unwrap()).await)
}

async fn accepts(running: &Running, generated: &CertifiedKey<KeyPair>) -> bool {
    scrape(running, &trusting(generated.cert.der())).await.is_some()
}

/// Waits until the server has read its files again.
async fn reload(clock: &TestClock) {
    next_deadline_in(clock, RELOAD_INTERVAL).await;
    clock.advance(RELOAD_INTERVAL);
    next_deadline_in(clock, RELOAD_INTERVAL).await;
}

#[tokio::test]
async fn a_self_signed_certificate_works_for_clients_that_do_not_verify() {
    let running = serve(Tls::self_signed().unwrap(), &TestClock::new());
    assert_eq!(scrape(&running, &unverified()).await.unwrap().status, 200);
    assert!(!accepts(&running, &certificate()).await);
}

#[tokio::test]
async fn uses_a_custom_configuration() {
    let generated = certificate();
    let key = PrivatePkcs8KeyDer::from(generated.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![generated.cert.der().clone()], key.into())
        .unwrap();
    let running = serve(Tls::config(Arc::new(config)), &TestClock::new());
    assert!(accepts(&running, &generated).await);
}

#[tokio::test]
async fn guarantee_1_reloads_changed_files() {
    let (old, new, clock) = (certificate(), certificate(), TestClock::new());
    let files = Files::with(&old);
    let running = serve(files.tls(), &clock);
    assert!(accepts(&running, &old).await);
    files.write(&new);
    reload(&clock).await;
    assert!(accepts(&running, &new).await);
    assert!(!accepts(&running, &old).await);
    let metrics = scrape(&running, &trusting(new.cert.der())).await.unwrap().body;
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
async fn guarantee_2_invalid_files_keep_the_last_valid_pair() {
    let (old, new, clock) = (certificate(), certificate(), TestClock::new());
    let files = Files::with(&old);
    let running = serve(files.tls(), &clock);
    // The new certificate is written, its key is not.
    fs::write(files.path("tls.crt"), new.cert.pem()).unwrap();
    reload(&clock).await;
    assert!(accepts(&running, &old).await);
    fs::remove_file(files.path("tls.crt")).unwrap();
    reload(&clock).await;
    assert!(accepts(&running, &old).await);
    files.write(&new);
    reload(&clock).await;
    assert!(accepts(&running, &new).await);
    let metrics = scrape(&running, &trusting(new.cert.der())).await.unwrap().body;
    assert!(
        metrics.contains("\ncertwatcher_read_certificate_errors_total 2\n"),
        "{metrics}"
    );
}

#[test]
fn errors_name_missing_and_invalid_files() {
    let files = Files::with(&certificate());
    let (certificate_file, key_file) = (files.path("tls.crt"), files.path("tls.key"));
    let missing = files.path("missing");
    let error = Tls::files(&missing, &key_file).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read {}", missing.display()));
    let error = Tls::files(&certificate_file, &certificate_file).unwrap_err();
    let expected = format!("{} has no PEM block `PRIVATE KEY`", certificate_file.display());
    assert_eq!(error.to_string(), expected);
    let error = Tls::files(&key_file, &key_file).unwrap_err();
    assert!(error.to_string().contains("tls.key"), "{error}");
    fs::write(&key_file, certificate().signing_key.serialize_pem()).unwrap();
    let error = Tls::files(&certificate_file, &key_file).unwrap_err();
    assert!(
        error.to_string().starts_with("cannot use the certificate in"),
        "{error}"
    );
}

#[test]
fn debug_output_does_not_contain_keys() {
    let generated = certificate();
    let text = format!("{:?}", Files::with(&generated).tls());
    assert!(text.contains("tls.key") && !text.contains("PRIVATE"), "{text}");
}
