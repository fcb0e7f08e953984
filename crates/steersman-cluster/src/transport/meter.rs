// SPDX-License-Identifier: Apache-2.0
//! Counters of requests, and the state of the connection to the server.

use std::{error::Error, sync::Arc};

use steersman_core::Mutex;

use http::{Method, StatusCode};
use tokio::sync::watch;

use super::{
    SendError,
    histogram::{RequestHistogram, RequestHistograms},
};

/// Number of requests with the same outcome: `rest_client_requests_total` and `rest_client_request_retries_total` of
/// client-go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCount {
    /// Code of the answer, or `None` if there was none; client-go uses `<error>` for that.
    pub code: Option<u16>,
    /// The HTTP method.
    pub method: String,
    /// Host and port of the server.
    pub host: String,
    /// Number of requests.
    pub count: u64,
}

/// State of the connection according to the last request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Contact {
    /// No request was sent.
    #[default]
    None,
    /// The server answered with any code except 401.
    Made,
    /// The server rejected the credentials.
    Refused,
    /// There are no credentials to send.
    NoCredentials { reason: Arc<str> },
    /// The server did not answer.
    Lost { reason: Arc<str> },
}

#[derive(Debug)]
pub(crate) struct Meter {
    host: String,
    requests: Counts,
    retries: Counts,
    pub(super) histograms: RequestHistograms,
    contact: watch::Sender<Contact>,
}

/// Counts by method and code. There are only a few, so that a linear search is faster than a map.
#[derive(Debug, Default)]
struct Counts(Mutex<Vec<(Method, Option<StatusCode>, u64)>>);

impl Contact {
    /// Uses the innermost source of the error, which names the cause.
    fn lost(error: &dyn Error) -> Self {
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        let reason = causes
            .last()
            .map_or_else(|| error.to_string(), ToString::to_string);
        Self::Lost {
            reason: reason.into(),
        }
    }
}

impl Meter {
    pub(crate) fn new(host: String) -> Self {
        Self {
            host,
            requests: Counts::default(),
            retries: Counts::default(),
            histograms: RequestHistograms::default(),
            contact: watch::Sender::default(),
        }
    }

    /// Counts an attempt and its outcome.
    pub(super) fn note(&self, method: &Method, answer: Result<StatusCode, &SendError>) {
        self.requests.add(method, answer.ok());
        let contact = match answer {
            Ok(StatusCode::UNAUTHORIZED) => Contact::Refused,
            Ok(_) => Contact::Made,
            // A fence ended the attempt, which is no information about the server.
            Err(SendError::Closed(_)) => return,
            Err(SendError::TimedOut(error)) => Contact::lost(error),
            Err(SendError::Failed(error)) => Contact::lost(error),
        };
        self.set(contact);
    }

    /// Records that a request was not sent because there are no credentials for it.
    pub(super) fn has_no_credentials(&self, error: &dyn Error) {
        let reason = error.to_string().into();
        self.set(Contact::NoCredentials { reason });
    }

    fn set(&self, contact: Contact) {
        self.contact.send_if_modified(|known| {
            let is_new = *known != contact;
            *known = contact;
            is_new
        });
    }

    /// Counts a retry after this answer, or after none.
    pub(super) fn retried(&self, method: &Method, answer: Option<StatusCode>) {
        self.retries.add(method, answer);
    }

    /// Returns the number of requests by outcome.
    pub(crate) fn requests(&self) -> Vec<RequestCount> {
        self.requests.all(&self.host)
    }

    /// Returns the number of retries by outcome.
    pub(crate) fn retries(&self) -> Vec<RequestCount> {
        self.retries.all(&self.host)
    }

    /// Returns the durations and sizes of requests.
    pub(crate) fn histograms(&self) -> Vec<RequestHistogram> {
        self.histograms.all(&self.host)
    }

    /// Returns the state of the connection and its changes.
    pub(crate) fn contact(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }
}

impl Counts {
    fn add(&self, method: &Method, code: Option<StatusCode>) {
        let mut counts = self.0.lock();
        let known = counts
            .iter_mut()
            .find(|(known, its_code, _)| known == method && *its_code == code);
        match known {
            Some((_, _, count)) => *count += 1,
            None => counts.push((method.clone(), code, 1)),
        }
    }

    fn all(&self, host: &str) -> Vec<RequestCount> {
        let mut counts: Vec<_> = self
            .0
            .lock()
            .iter()
            .map(|(method, code, count)| RequestCount {
                code: code.map(|code| code.as_u16()),
                method: method.to_string(),
                host: host.to_owned(),
                count: *count,
            })
            .collect();
        counts.sort_by(|a, b| (&a.method, a.code).cmp(&(&b.method, b.code)));
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_requests_by_outcome() {
        let meter = Meter::new("host:1".to_owned());
        assert_eq!(*meter.contact().borrow(), Contact::None);
        meter.note(&Method::GET, Ok(StatusCode::OK));
        meter.note(&Method::GET, Ok(StatusCode::OK));
        meter.note(&Method::PUT, Ok(StatusCode::CONFLICT));
        assert_eq!(*meter.contact().borrow(), Contact::Made);
        let lost = SendError::Failed(kube::Error::TlsRequired);
        meter.note(&Method::GET, Err(&lost));
        let counts: Vec<_> = meter
            .requests()
            .into_iter()
            .map(|one| (one.method, one.code, one.count))
            .collect();
        let expected = [("GET", None, 1), ("GET", Some(200), 2), ("PUT", Some(409), 1)];
        assert_eq!(
            counts,
            expected.map(|(method, code, count)| (method.to_owned(), code, count))
        );
        assert!(matches!(&*meter.contact().borrow(), Contact::Lost { .. }));
        meter.note(&Method::GET, Ok(StatusCode::UNAUTHORIZED));
        assert_eq!(*meter.contact().borrow(), Contact::Refused);
    }
}
