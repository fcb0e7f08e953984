// SPDX-License-Identifier: Apache-2.0
//! The cells of Services, Ingresses and other networking kinds.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::cells::{Fields, labels, or_none, with_more};

pub(super) fn service(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let texts = |path: &[&str]| -> Vec<String> {
        let list = fields.list(path).iter().filter_map(Value::as_str);
        list.map(str::to_owned).collect()
    };
    let kind = fields.text(&["spec", "type"]);
    let mut external = texts(&["spec", "externalIPs"]);
    let external = match kind.as_str() {
        "ExternalName" => fields.text(&["spec", "externalName"]),
        "LoadBalancer" => {
            let mut all = balancer(fields);
            all.append(&mut external);
            if all.is_empty() {
                "<pending>".to_owned()
            } else {
                all.join(",")
            }
        }
        "ClusterIP" | "NodePort" => or_none(external.join(",")),
        _ => "<unknown>".to_owned(),
    };
    let port = |port: &Value| {
        let protocol = port["protocol"].as_str().unwrap_or_default();
        match port["nodePort"].as_i64().unwrap_or_default() {
            0 => format!("{}/{protocol}", port["port"]),
            node => format!("{}:{node}/{protocol}", port["port"]),
        }
    };
    let ports: Vec<String> = fields.list(&["spec", "ports"]).iter().map(port).collect();
    let address = texts(&["spec", "clusterIPs"])
        .into_iter()
        .next()
        .unwrap_or_default();
    vec![
        name,
        json!(kind),
        json!(or_none(address)),
        json!(external),
        json!(or_none(ports.join(","))),
        age,
        json!(or_none(labels(fields.map(&["spec", "selector"])))),
    ]
}

/// Returns the ingress addresses of a load balancer, sorted.
fn balancer(fields: &Fields<'_>) -> Vec<String> {
    let ingress = fields.list(&["status", "loadBalancer", "ingress"]);
    let address = |entry: &Value| {
        let text = |key: &str| entry[key].as_str().filter(|text| !text.is_empty());
        text("ip").or(text("hostname")).map(str::to_owned)
    };
    let all: BTreeSet<String> = ingress.iter().filter_map(address).collect();
    all.into_iter().collect()
}

pub(super) fn endpoints(fields: &Fields<'_>) -> String {
    let mut all = Vec::new();
    for subset in fields.list(&["subsets"]) {
        let items = |key: &str| subset[key].as_array().cloned().unwrap_or_default();
        let ports = items("ports");
        if ports.is_empty() {
            let addresses = items("addresses");
            all.extend(
                addresses
                    .iter()
                    .filter_map(|address| address["ip"].as_str())
                    .map(str::to_owned),
            );
        }
        for port in ports {
            for address in items("addresses") {
                all.push(format!(
                    "{}:{}",
                    address["ip"].as_str().unwrap_or_default(),
                    port["port"]
                ));
            }
        }
    }
    if all.is_empty() {
        "<none>".to_owned()
    } else {
        with_more(&all)
    }
}

pub(super) fn endpoint_slice(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let port = |port: &Value| match (&port["port"], port["name"].as_str()) {
        (Value::Number(number), _) => number.to_string(),
        (_, Some(name)) => name.to_owned(),
        _ => "*".to_owned(),
    };
    let ports: Vec<String> = fields.list(&["ports"]).iter().map(port).collect();
    let addresses = fields.list(&["endpoints"]).iter().flat_map(|endpoint| {
        let addresses = endpoint["addresses"].as_array().cloned().unwrap_or_default();
        addresses
            .into_iter()
            .filter_map(|address| address.as_str().map(str::to_owned))
    });
    let addresses: Vec<String> = addresses.collect();
    let kind = fields.text(&["addressType"]);
    vec![
        name,
        json!(kind),
        json!(with_more(&ports)),
        json!(with_more(&addresses)),
        age,
    ]
}

pub(super) fn ingress(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let rules = fields.list(&["spec", "rules"]);
    let hosts: Vec<&str> = rules
        .iter()
        .filter_map(|rule| rule["host"].as_str().filter(|host| !host.is_empty()))
        .collect();
    let shown = hosts.iter().take(3).copied().collect::<Vec<_>>().join(",");
    let shown = match (hosts.len(), rules.len()) {
        (0, _) => "*".to_owned(),
        (3.., rules) if rules > 3 => format!("{shown} + {} more...", rules - 3),
        _ => shown,
    };
    let ports = if fields.list(&["spec", "tls"]).is_empty() {
        "80"
    } else {
        "80, 443"
    };
    vec![
        name,
        json!(fields.text_or(&["spec", "ingressClassName"], "<none>")),
        json!(shown),
        json!(balancer(fields).join(",")),
        json!(ports),
        age,
    ]
}
