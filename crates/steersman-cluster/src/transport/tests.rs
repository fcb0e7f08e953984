// SPDX-License-Identifier: Apache-2.0
use super::*;

fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::empty()).unwrap()
}

#[test]
fn watches_and_streams_have_no_timeout() {
    for uri in [
        "/api/v1/pods?watch=true",
        "/api/v1/pods?a=b&watch=1",
        "/api/v1/namespaces/n/pods/p/log",
        "/api/v1/namespaces/n/pods/p/proxy/watch",
        "/api/v1/nodes/a/proxy/metrics",
    ] {
        assert!(is_long_running(&get(uri)), "{uri}");
    }
    for uri in [
        "/api/v1/pods?watch=false",
        "/api/v1/namespaces/n/pods/watch",
        "/api/v1/namespaces/proxy/configmaps/log",
        "/api/v1/namespaces/log/pods/exec/status",
        "/apis/example.com/v1/namespaces/n/widgets/proxy",
        "/api/v1/namespaces/proxy",
        "/api/v1/namespaces/n/finalize",
        "/apis",
    ] {
        assert!(!is_long_running(&get(uri)), "{uri}");
    }
}

#[test]
fn requests_into_a_pod_are_writes_with_any_method() {
    for (uri, expected) in [
        ("/api/v1/namespaces/n/pods/p/exec?command=ls", false),
        ("/api/v1/namespaces/n/pods/p/attach", false),
        ("/api/v1/namespaces/n/pods/p/portforward", false),
        ("/api/v1/namespaces/n/services/s/proxy/delete-all", false),
        ("/api/v1/namespaces/n/pods/p/log", true),
        ("/api/v1/namespaces/n/pods/exec", true),
        ("/api/v1/pods?watch=true", true),
    ] {
        assert_eq!(is_read(&Method::GET, get(uri).uri()), expected, "{uri}");
    }
    assert!(!is_read(&Method::POST, get("/api/v1/pods").uri()));
}

#[test]
fn distinguishes_subresources_from_names() {
    for (path, expected) in [
        ("/api/v1/namespaces/n/pods/p/status", Some("status")),
        ("/apis/apps/v1/namespaces/n/deployments/d/scale", Some("scale")),
        ("/apis/example.com/v1/things/t/status", Some("status")),
        ("/api/v1/nodes/a/proxy/x", Some("proxy")),
        ("/api/v1/namespaces/n/pods/p", None),
        ("/api/v1/namespaces/n/pods", None),
        ("/version", None),
        ("", None),
    ] {
        assert_eq!(subresource(path), expected, "{path}");
    }
}

#[test]
fn adds_the_timeout_to_the_query() {
    let told = |uri| {
        let mut request = get(uri);
        tell_time(&mut request, Duration::from_millis(1500));
        request.uri().to_string()
    };
    assert_eq!(told("/api/v1/pods"), "/api/v1/pods?timeout=1500ms");
    assert_eq!(told("/api/v1/pods?"), "/api/v1/pods?timeout=1500ms");
    assert_eq!(told("/api/v1/pods?a=b"), "/api/v1/pods?a=b&timeout=1500ms");
    assert_eq!(
        told("https://host:1/api?a=b"),
        "https://host:1/api?a=b&timeout=1500ms"
    );
}
