// SPDX-License-Identifier: Apache-2.0
//! Content negotiation: selects the form of objects in a response.

use crate::{
    route::Query,
    status::{Failure, Result},
    table::Include,
};

/// The form of objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The whole object.
    Full,
    /// `PartialObjectMetadata`.
    Metadata,
    /// `Table`, for printing.
    Table(Include),
}

/// One media type of an `Accept` header.
#[derive(Debug)]
pub(crate) struct Accepted<'a> {
    pub(crate) media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Accepted<'a> {
    pub(crate) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    }

    pub(crate) fn is_json(&self) -> bool {
        matches!(self.media, "application/json" | "application/*" | "*/*")
    }
}

/// Parses the media types of an `Accept` header, in order.
pub(crate) fn accepted(header: &str) -> impl Iterator<Item = Accepted<'_>> {
    header
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| {
            let mut pieces = part.split(';').map(str::trim);
            let media = pieces.next().unwrap_or_default();
            let parameters = pieces.filter_map(|piece| piece.split_once('=')).collect();
            Accepted { media, parameters }
        })
}

/// Selects the form of a response that carries objects.
///
/// # Errors
/// Returns 406 if the server supports none of the accepted media types.
pub(crate) fn form(accept: &str, query: &Query) -> Result<Form> {
    let mut any = false;
    for accepted in accepted(accept) {
        any = true;
        if !accepted.is_json() {
            continue;
        }
        let meta = accepted.parameter("g") == Some("meta.k8s.io") && accepted.parameter("v") == Some("v1");
        match accepted.parameter("as") {
            None => return Ok(Form::Full),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") if meta => return Ok(Form::Metadata),
            Some("Table") if meta => return include(query).map(Form::Table),
            Some(_) => {}
        }
    }
    if any {
        let message = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf, application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
        return Err(Failure::not_acceptable(message).with_details());
    }
    Ok(Form::Full)
}

/// Parses `includeObject`: how much of each object a table row contains.
fn include(query: &Query) -> Result<Include> {
    match query.get("includeObject").unwrap_or_default() {
        "" | "Metadata" => Ok(Include::Metadata),
        "None" => Ok(Include::None),
        "Object" => Ok(Include::Object),
        other => Err(Failure::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(accept: &str) -> Result<Form> {
        super::form(accept, &Query::parse(""))
    }

    #[test]
    fn the_first_form_that_can_be_made_is_chosen() {
        assert_eq!(form("").unwrap(), Form::Full);
        assert_eq!(
            form("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json").unwrap(),
            Form::Metadata
        );
        assert_eq!(
            form("application/json;as=Table;v=v1;g=meta.k8s.io,application/json").unwrap(),
            Form::Table(Include::Metadata)
        );
        assert_eq!(form("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
    }
}
