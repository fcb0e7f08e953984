// SPDX-License-Identifier: Apache-2.0
//! Builds HTTP requests.

use form_urlencoded::Serializer;
use http::{HeaderValue, Method, Request, header};
use kube::client::Body;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::{Error, Operation};

/// Characters that would end a path segment.
const NOT_IN_A_NAME: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\');

pub(super) const JSON: &str = "application/json";

/// A request: method, path, query and body.
pub(super) struct RequestPlan<'a> {
    pub(super) call: &'a Operation,
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    accept: &'static str,
    content: Option<(HeaderValue, Vec<u8>)>,
}

impl<'a> RequestPlan<'a> {
    /// Plans a request for the objects of a namespace, or of all namespaces.
    pub(super) fn of_collection(method: Method, call: &'a Operation) -> Result<Self, Error> {
        let resource = call.resource();
        let root = if resource.group().is_empty() {
            "/api"
        } else {
            "/apis"
        };
        let mut path = format!("{root}/{}", resource.api_version());
        if !call.namespace().is_empty() {
            path = format!("{path}/namespaces/{}", name(call, call.namespace())?);
        }
        Ok(Self {
            call,
            method,
            path: format!("{path}/{}", resource.plural()),
            query: Vec::new(),
            accept: JSON,
            content: None,
        })
    }

    /// Plans a request for one object or one of its subresources.
    pub(super) fn of_object(method: Method, call: &'a Operation) -> Result<Self, Error> {
        let mut plan = Self::of_collection(method, call)?;
        plan.path = format!("{}/{}", plan.path, name(call, call.name())?);
        if !call.subresource().is_empty() {
            plan.path = format!("{}/{}", plan.path, name(call, call.subresource())?);
        }
        Ok(plan)
    }

    pub(super) fn with(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.query.push((key, value.into()));
        self
    }

    pub(super) fn with_if(self, condition: bool, key: &'static str, value: &str) -> Self {
        if condition { self.with(key, value) } else { self }
    }

    pub(super) fn accepting(mut self, form: &'static str) -> Self {
        self.accept = form;
        self
    }

    pub(super) fn carrying(mut self, form: HeaderValue, content: Vec<u8>) -> Self {
        self.content = Some((form, content));
        self
    }

    pub(super) fn carrying_json(self, content: Vec<u8>) -> Self {
        self.carrying(HeaderValue::from_static(JSON), content)
    }

    pub(super) fn request(self) -> Result<Request<Body>, Error> {
        let mut address = self.path;
        if !self.query.is_empty() {
            address.push('?');
            let start = address.len();
            address = Serializer::for_suffix(address, start)
                .extend_pairs(self.query)
                .finish();
        }
        let mut request = Request::builder()
            .method(self.method)
            .uri(address)
            .header(header::ACCEPT, self.accept);
        let body = match self.content {
            Some((form, content)) => {
                request = request.header(header::CONTENT_TYPE, form);
                Body::from(content)
            }
            None => Body::empty(),
        };
        request
            .body(body)
            .map_err(|_| invalid(self.call, "its names do not form a valid URL"))
    }
}

/// Encodes a path segment. An empty one is an error: it would turn a request for one object into one for all of them.
fn name(call: &Operation, name: &str) -> Result<String, Error> {
    match name {
        "" => Err(invalid(call, "it has no name; set metadata.name")),
        "." | ".." => Err(invalid(call, "`.` and `..` are not valid names")),
        name => Ok(utf8_percent_encode(name, NOT_IN_A_NAME).to_string()),
    }
}

pub(super) fn invalid(call: &Operation, reason: &'static str) -> Error {
    let call = Box::new(call.clone());
    Error::Invalid { call, reason }
}

#[cfg(test)]
mod tests {
    use steersman_cache::Resource;
    use steersman_core::ObjectKey;

    use super::*;

    fn path(call: &Operation) -> String {
        let plan = RequestPlan::of_object(Method::GET, call).unwrap();
        plan.with("fieldManager", "a b")
            .request()
            .unwrap()
            .uri()
            .to_string()
    }

    #[test]
    fn builds_urls_of_the_api() {
        let widgets = Resource::new("example.com", "v1", "Widget", "widgets");
        let call = Operation::on("get", &widgets, &ObjectKey::new("n", "a")).subresource_of("status");
        assert_eq!(
            path(&call),
            "/apis/example.com/v1/namespaces/n/widgets/a/status?fieldManager=a+b"
        );
        let nodes = Resource::new("", "v1", "Node", "nodes");
        let call = Operation::on("get", &nodes, &ObjectKey::new("", "x/y?z"));
        assert_eq!(path(&call), "/api/v1/nodes/x%2Fy%3Fz?fieldManager=a+b");
    }

    #[test]
    fn rejects_a_request_for_one_object_without_a_name() {
        let nodes = Resource::new("", "v1", "Node", "nodes");
        for name in ["", ".", ".."] {
            let call = Operation::on("delete", &nodes, &ObjectKey::new("", name));
            assert!(RequestPlan::of_object(Method::DELETE, &call).is_err(), "{name}");
        }
    }
}
