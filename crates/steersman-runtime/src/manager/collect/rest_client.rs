// SPDX-License-Identifier: Apache-2.0
//! Metrics of requests to API servers, with the names, labels and buckets of client-go.

use std::{collections::BTreeMap, fmt};

use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};
use steersman_cluster::{Cluster, RequestCount, RequestHistogram, RequestMetric};

use super::sample;

/// Histograms: the measured property, the name and the help.
const HISTOGRAMS: [(RequestMetric, &str, &str); 4] = [
    (
        RequestMetric::Duration,
        "rest_client_request_duration_seconds",
        "Duration of requests to API servers, with retries and the whole answer, by verb and host",
    ),
    (
        RequestMetric::RateLimiterDuration,
        "rest_client_rate_limiter_duration_seconds",
        "Time that requests waited for the rate limit of the client, by verb and host",
    ),
    (
        RequestMetric::RequestSize,
        "rest_client_request_size_bytes",
        "Bytes of request bodies, by verb and host",
    ),
    (
        RequestMetric::ResponseSize,
        "rest_client_response_size_bytes",
        "Bytes of response bodies, by verb and host",
    ),
];

/// Writes all metrics of requests.
pub(super) fn encode(clusters: &[Cluster], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Requests to API servers by code, method and host";
    let metric = encoder.encode_descriptor("rest_client_requests", help, None, MetricType::Counter)?;
    count(clusters, Cluster::requests, "method", metric)?;
    let help = "Retries of requests to API servers, by code, verb and host";
    let metric = encoder.encode_descriptor("rest_client_request_retries", help, None, MetricType::Counter)?;
    count(clusters, Cluster::retries, "verb", metric)?;
    histograms(clusters, encoder)?;
    plugin_calls(clusters, encoder)
}

/// Writes counters with the labels of client-go, which uses both `method` and `verb`.
fn count(
    clusters: &[Cluster],
    counts: impl Fn(&Cluster) -> Vec<RequestCount>,
    method_label: &str,
    mut metric: MetricEncoder<'_>,
) -> fmt::Result {
    // Two clusters can have the same host, such as two services in this process: each series must be unique.
    let mut sums: BTreeMap<_, u64> = BTreeMap::new();
    for count in clusters.iter().flat_map(counts) {
        let labels = (count.host, count.method, count.code);
        *sums.entry(labels).or_default() += count.count;
    }
    for ((host, method, code), sum) in sums {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let labels = [
            ("code", code.as_str()),
            (method_label, method.as_str()),
            ("host", host.as_str()),
        ];
        sample(metric.encode_family(&labels)?, MetricType::Counter, sum as f64)?;
    }
    Ok(())
}

fn histograms(clusters: &[Cluster], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut sums: BTreeMap<_, RequestHistogram> = BTreeMap::new();
    for one in clusters.iter().flat_map(Cluster::request_histograms) {
        let labels = (one.metric, one.host.clone(), one.verb.clone());
        match sums.get_mut(&labels) {
            Some(sum) => merge(sum, &one),
            None => drop(sums.insert(labels, one)),
        }
    }
    for (wanted, name, help) in HISTOGRAMS {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for ((_, host, verb), sum) in sums.iter().filter(|((metric, ..), _)| *metric == wanted) {
            let labels = [("verb", verb.as_str()), ("host", host.as_str())];
            let count = sum.buckets.iter().map(|(_, count)| count).sum();
            let mut family = metric.encode_family(&labels)?;
            family.encode_histogram::<NoLabelSet>(sum.sum, count, &sum.buckets, None)?;
        }
    }
    Ok(())
}

/// Adds the values of a histogram of the same property, which has the same buckets.
fn merge(sum: &mut RequestHistogram, other: &RequestHistogram) {
    sum.sum += other.sum;
    for ((_, count), (_, more)) in sum.buckets.iter_mut().zip(&other.buckets) {
        *count += more;
    }
}

fn plugin_calls(clusters: &[Cluster], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Calls of exec plugins by exit code and status";
    let name = "rest_client_exec_plugin_call";
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    let mut sums: BTreeMap<_, u64> = BTreeMap::new();
    for call in clusters.iter().flat_map(Cluster::plugin_calls) {
        *sums.entry((call.code, call.call_status)).or_default() += call.count;
    }
    for ((code, call_status), sum) in sums {
        let code = code.to_string();
        let labels = [("code", code.as_str()), ("call_status", call_status)];
        sample(metric.encode_family(&labels)?, MetricType::Counter, sum as f64)?;
    }
    Ok(())
}
