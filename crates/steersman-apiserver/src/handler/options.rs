// SPDX-License-Identifier: Apache-2.0
//! Options of lists and watches, and continue tokens.

use base64::{
    Engine as _, alphabet,
    engine::general_purpose::{GeneralPurpose, NO_PAD, URL_SAFE_NO_PAD},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    resource::{Resource, Version},
    route::Query,
    selector::{self, FieldRequirement, Selector},
    status::{Failure, FieldError, Qualified, Result},
};

/// `resourceVersionMatch`: how the result of a list relates to the requested revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    Exact,
    NotOlderThan,
}

/// Parsed options of a list or watch.
#[derive(Clone, Debug)]
pub(crate) struct ListOptions {
    /// `None` if the parameter was absent or empty.
    pub(crate) revision: Option<u64>,
    pub(crate) revision_match: Option<Match>,
    pub(crate) limit: Option<usize>,
    pub(crate) continuation: Option<String>,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) bookmarks: bool,
    pub(crate) timeout_seconds: Option<u64>,
    pub(crate) selector: Selector,
}

impl ListOptions {
    /// Parses and checks the options of a list, watch or deletecollection.
    ///
    /// # Errors
    /// Responds as the real server does: 400 for options that cannot be parsed, 422 for options that exclude each
    /// other.
    pub(crate) fn parse(
        query: &Query,
        resource: &Resource,
        version: &Version,
        name: &str,
        watch: bool,
    ) -> Result<Self> {
        let limit = integer(query, "limit")?
            .and_then(|limit| usize::try_from(limit).ok())
            .filter(|limit| *limit > 0);
        let timeout_seconds =
            integer(query, "timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok());
        let labels = selector::parse_labels(query.get("labelSelector").unwrap_or_default())
            .map_err(Failure::bad_request)?;
        let fields = query.get("fieldSelector").unwrap_or_default();
        let mut fields = selector::parse_fields(fields, resource, version).map_err(Failure::bad_request)?;
        if !name.is_empty() {
            let other = Selector {
                labels: Vec::new(),
                fields: fields.clone(),
            };
            if other.name().is_some_and(|other| other != name) {
                return Err(Failure::bad_request(
                    "fieldSelector metadata.name doesn't match requested name",
                ));
            }
            fields.push(FieldRequirement::named(name));
        }
        let options = Self {
            revision: None,
            revision_match: None,
            limit,
            continuation: query.filled("continue").map(str::to_owned),
            send_initial_events: query
                .filled("sendInitialEvents")
                .map(|_| query.flag("sendInitialEvents")),
            bookmarks: query
                .get("allowWatchBookmarks")
                .is_some_and(|_| query.flag("allowWatchBookmarks")),
            timeout_seconds,
            selector: Selector { labels, fields },
        };
        options.with_revision(query, watch)
    }

    fn with_revision(mut self, query: &Query, watch: bool) -> Result<Self> {
        let revision = query.get("resourceVersion").unwrap_or_default();
        let mut given = query.filled("resourceVersionMatch");
        // A watch without a start revision gets the current state first.
        if watch && self.send_initial_events.is_none() && given.is_none() && matches!(revision, "" | "0") {
            self.send_initial_events = Some(true);
            given = Some("NotOlderThan");
        }
        let errors = if watch {
            self.check_watch(given)
        } else {
            self.check_list(given, revision)
        };
        if !errors.is_empty() {
            return Err(Failure::invalid(
                Qualified {
                    group: "meta.k8s.io",
                    name: "ListOptions",
                },
                "",
                &errors,
            ));
        }
        self.revision_match = match given {
            Some("Exact") => Some(Match::Exact),
            Some("NotOlderThan") => Some(Match::NotOlderThan),
            _ => None,
        };
        if !revision.is_empty() {
            let error = || {
                format!(
                    "resourceVersion: Invalid value: {revision:?}: strconv.ParseUint: parsing {revision:?}: invalid syntax"
                )
            };
            let parsed = revision.parse().map_err(|_| {
                if watch {
                    Failure::unclassified(error())
                } else {
                    Failure::bad_request(format!("invalid resource version: {}", error()))
                }
            })?;
            self.revision = Some(parsed);
        }
        if self.continuation.is_some() && self.revision.is_some_and(|revision| revision > 0) {
            return Err(Failure::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(self)
    }

    fn check_list(&self, given: Option<&str>, revision: &str) -> Vec<FieldError> {
        let field = "resourceVersionMatch";
        let mut errors = Vec::new();
        if let Some(given) = given {
            if revision.is_empty() {
                errors.push(FieldError::forbidden(
                    field,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if self.continuation.is_some() {
                errors.push(FieldError::forbidden(
                    field,
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            if !matches!(given, "Exact" | "NotOlderThan") {
                let supported = ["Exact", "NotOlderThan", ""].map(str::to_owned);
                errors.push(FieldError::unsupported(field, &Value::from(given), &supported));
            }
            if given == "Exact" && revision == "0" {
                errors.push(FieldError::forbidden(
                    field,
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
        }
        if self.send_initial_events.is_some() {
            errors.push(FieldError::forbidden(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for list",
            ));
        }
        errors
    }

    fn check_watch(&self, given: Option<&str>) -> Vec<FieldError> {
        let field = "resourceVersionMatch";
        let mut errors = Vec::new();
        if let Some(given) = given {
            if self.send_initial_events.is_none() {
                let message =
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                errors.push(FieldError::forbidden(field, message));
            }
            if given != "NotOlderThan" {
                errors.push(FieldError::unsupported(
                    field,
                    &Value::from(given),
                    &["NotOlderThan".to_owned()],
                ));
            }
            if self.continuation.is_some() {
                errors.push(FieldError::forbidden(
                    field,
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
        } else if self.send_initial_events.is_some() {
            let message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            errors.push(FieldError::forbidden(field, message));
        }
        errors
    }
}

fn integer(query: &Query, name: &str) -> Result<Option<i64>> {
    let Some(text) = query.filled(name) else {
        return Ok(None);
    };
    let refused = |_| Failure::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"));
    text.parse().map(Some).map_err(refused)
}

/// Decodes as Go does: ignores trailing bits.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Position at which a list continues.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Continue {
    v: String,
    /// The revision of the first page; -1 continues at the latest revision.
    pub(crate) rv: i64,
    /// The first key of the next page, without the prefix of the list.
    pub(crate) start: String,
}

impl Continue {
    /// Continues after the key `last`.
    pub(crate) fn after(last: &str, rv: i64) -> Self {
        Self {
            v: "meta.k8s.io/v1".to_owned(),
            rv,
            start: format!("{last}\0"),
        }
    }

    /// Returns the same position at the latest revision.
    pub(crate) fn at_latest(&self) -> Self {
        Self {
            v: self.v.clone(),
            rv: -1,
            start: self.start.clone(),
        }
    }

    pub(crate) fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token can be written as JSON"))
    }

    pub(crate) fn decode(token: &str) -> Result<Self> {
        let refused = |why: String| {
            Failure::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let illegal = |byte: u8| !byte.is_ascii_alphanumeric() && !matches!(byte, b'-' | b'_');
        let bytes = LENIENT.decode(token).map_err(|_| {
            // If all characters are legal, the error is a surplus last character.
            let at = token.bytes().position(illegal).unwrap_or(token.len() / 4 * 4);
            refused(format!("illegal base64 data at input byte {at}"))
        })?;
        #[derive(Deserialize)]
        struct Loose {
            #[serde(default)]
            v: String,
            #[serde(default)]
            rv: i64,
            #[serde(default)]
            start: String,
        }
        let read: std::result::Result<Value, _> = serde_json::from_slice(&bytes);
        if let Some(other) = read.as_ref().ok().filter(|value| !value.is_object()) {
            let kind = super::decode::go_kind(other);
            let why = format!("json: cannot unmarshal {kind} into Go value of type storage.continueToken");
            return Err(refused(why));
        }
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        let Loose { v, rv, start } = serde_json::from_slice(&bytes).map_err(|_| match first {
            Some(first) if *first != b'{' => refused(format!(
                "invalid character '{}' looking for beginning of value",
                char::from(*first)
            )),
            _ => refused("unexpected end of JSON input".to_owned()),
        })?;
        if v != "meta.k8s.io/v1" {
            return Err(refused(format!(
                "server does not recognize this encoded version {v}"
            )));
        }
        if rv == 0 {
            return Err(refused(
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)".to_owned(),
            ));
        }
        if start.is_empty() {
            return Err(refused(
                "encoded start key empty (version meta.k8s.io/v1)".to_owned(),
            ));
        }
        if start.split('/').any(|part| part == "..") {
            return Err(refused(start));
        }
        Ok(Self { v, rv, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_survives_the_round_trip() {
        let token = Continue::after("default/a", 17);
        assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
    }

    #[test]
    fn malformed_continue_tokens_are_refused() {
        for bad in [
            "abc",
            "%",
            "e30",
            &URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
        ] {
            assert_eq!(Continue::decode(bad).unwrap_err().code, 400, "{bad}");
        }
    }
}
