// SPDX-License-Identifier: Apache-2.0
//! The requests of a reflector.

use form_urlencoded::Serializer;
use http::{Request, header};
use kube::client::Body;

use super::{Reflector, WatchError};

impl<S> Reflector<S> {
    /// Encodes the parameters of a list, plus `more`.
    pub(super) fn list_query(&self, more: &[(&str, &str)]) -> String {
        Serializer::new(String::new())
            .extend_pairs(self.scope.selectors(&self.namespace))
            .extend_pairs(more)
            .finish()
    }

    /// Encodes the parameters of a watch, plus `more`.
    pub(super) fn watch_query(&self, more: &[(&str, &str)]) -> String {
        let timeout = self
            .options
            .watch_timeout(self.random.fraction())
            .as_secs()
            .to_string();
        let watch = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", &timeout),
        ];
        self.list_query(&[&watch[..], more].concat())
    }

    pub(super) fn request(&self, query: &str, is_list: bool) -> Result<Request<Body>, WatchError> {
        let path = self.resource.path(&self.namespace);
        let accept = match (self.scope.is_metadata_only(), is_list) {
            (false, _) => "application/json",
            (true, true) => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            (true, false) => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        };
        Request::get(format!("{path}?{query}"))
            .header(header::ACCEPT, accept)
            // Set explicitly: a client built with decompression would add gzip, and would decode only one gzip member.
            .header(
                header::ACCEPT_ENCODING,
                if self.options.is_compressed() {
                    "gzip"
                } else {
                    "identity"
                },
            )
            .body(Body::empty())
            .map_err(|error| WatchError::Rejected {
                code: 400,
                reason: format!("{path} is not a path: {error}"),
            })
    }
}
