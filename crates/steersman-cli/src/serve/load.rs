// SPDX-License-Identifier: Apache-2.0
//! Loads manifests at the start of a server.
//!
//! CRDs and namespaces are loaded first, independent of their position, because other objects need them.

use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use kube::core::DynamicObject;
use serde_json::Value;
use steersman_cluster::{Cluster, ResourceQuery};
use steersman_core::MonotonicTime;

use crate::server::Server;

/// Field manager of the objects.
const OWNER: &str = "steersman-serve";

const DEFINITION: &str = "CustomResourceDefinition";

/// Time after which progress is printed.
const QUIET: Duration = Duration::from_secs(1);

/// A manifest cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{} cannot be read: say the path of a file or directory of manifests", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is neither YAML nor JSON: {reason}", path.display())]
    Parse { path: PathBuf, reason: String },
    #[error("{}: document {number} has no `{field}`: is it a manifest?", path.display())]
    Incomplete {
        path: PathBuf,
        number: usize,
        field: &'static str,
    },
    #[error("{}: {what} is of an unknown kind; load its CRD, too", path.display())]
    Kind {
        path: PathBuf,
        what: String,
        #[source]
        source: Box<steersman_cluster::MapError>,
    },
    #[error("{}: the server does not take {what}", path.display())]
    Refused {
        path: PathBuf,
        what: String,
        #[source]
        source: Box<steersman_cluster::Error>,
    },
}

/// A document and its source.
struct Document {
    path: PathBuf,
    object: DynamicObject,
    group: String,
    version: String,
    kind: String,
}

/// Loads all manifests of these files and directories; returns the number of objects.
pub(crate) async fn load(
    server: &Server,
    paths: &[PathBuf],
) -> Result<usize, Box<dyn std::error::Error + Send + Sync>> {
    let mut documents = Vec::new();
    for path in paths {
        for file in files(path)? {
            documents.extend(read(&file)?);
        }
    }
    documents.sort_by_key(Document::rank);
    let mut done = 0;
    let mut began = None;
    for portion in documents.chunk_by(|one, next| one.rank() == next.rank()) {
        // A mapper remembers missing kinds for a while. This new cluster has sent no discovery request yet.
        let cluster = server.cluster("load").await?;
        let began = *began.get_or_insert_with(|| cluster.clock().now());
        for document in portion {
            progress(&cluster, began, done, documents.len())?;
            apply(&cluster, document).await?;
            done += 1;
        }
    }
    Ok(done)
}

/// Returns the file itself, or the manifests in the directory, by name.
fn files(path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| LoadError::Read {
        path: path.to_path_buf(),
        source,
    };
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries: io::Result<Vec<_>> = fs::read_dir(path).map_err(failed)?.collect();
    let is_manifest = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("yaml" | "yml" | "json"))
    };
    let paths = entries.map_err(failed)?.into_iter().map(|entry| entry.path());
    let mut paths: Vec<_> = paths.filter(is_manifest).collect();
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Vec<Document>, LoadError> {
    let text = fs::read_to_string(path).map_err(|source| LoadError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    let parsed = serde_saphyr::from_multiple::<Value>(&text);
    let parsed = parsed.map_err(|error| LoadError::Parse {
        path: path.to_path_buf(),
        reason: error.to_string(),
    })?;
    let mut documents = Vec::new();
    for (number, value) in parsed.into_iter().enumerate() {
        for value in items(value) {
            documents.push(Document::new(path, number + 1, value)?);
        }
    }
    Ok(documents)
}

/// Returns the items of a list, or the object itself; nothing for an empty document.
fn items(mut value: Value) -> Vec<Value> {
    if value.is_null() {
        return Vec::new();
    }
    let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match value.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if is_list => items,
        Some(other) => {
            value["items"] = other;
            vec![value]
        }
        None => vec![value],
    }
}

impl Document {
    fn new(path: &Path, number: usize, value: Value) -> Result<Self, LoadError> {
        let text = |pointer: &str, field: &'static str| {
            let text = value.pointer(pointer).and_then(Value::as_str);
            text.map(str::to_owned).ok_or_else(|| LoadError::Incomplete {
                path: path.to_path_buf(),
                number,
                field,
            })
        };
        let api_version = text("/apiVersion", "apiVersion")?;
        let kind = text("/kind", "kind")?;
        text("/metadata/name", "metadata.name")?;
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
        let (group, version) = (group.to_owned(), version.to_owned());
        let object = serde_json::from_value(value).map_err(|error| LoadError::Parse {
            path: path.to_path_buf(),
            reason: format!("document {number}: {error}"),
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            object,
            group,
            version,
            kind,
        })
    }

    /// Returns the position in the loading order: objects that others need are first.
    fn rank(&self) -> u8 {
        match self.kind.as_str() {
            DEFINITION => 0,
            "Namespace" => 1,
            _ => 2,
        }
    }

    fn what(&self) -> String {
        let name = self.object.metadata.name.as_deref().unwrap_or_default();
        format!("{} `{name}`", self.kind)
    }
}

async fn apply(cluster: &Cluster, document: &Document) -> Result<(), LoadError> {
    let ask = ResourceQuery::kind(&document.group, &document.kind).version(&document.version);
    let mapping = cluster.mapper().resolve(&ask).await;
    let mapping = mapping.map_err(|source| LoadError::Kind {
        path: document.path.clone(),
        what: document.what(),
        source: Box::new(source),
    })?;
    let mut object = document.object.clone();
    if mapping.is_namespaced() && object.metadata.namespace.is_none() {
        object.metadata.namespace = Some("default".to_owned());
    }
    let client = cluster.live().field_manager(OWNER).force();
    let applied = client.of(mapping.resource()).apply(&object).await;
    applied.map_err(|source| LoadError::Refused {
        path: document.path.clone(),
        what: document.what(),
        source: Box::new(source),
    })?;
    Ok(())
}

/// Prints the progress, if it takes long and standard error is a terminal.
fn progress(cluster: &Cluster, began: MonotonicTime, done: usize, all: usize) -> io::Result<()> {
    let mut stderr = io::stderr();
    if cluster.clock().now().saturating_since(began) > QUIET && stderr.is_terminal() {
        write!(stderr, "\r\x1b[2Kloading {done} of {all}\r")?;
        stderr.flush()?;
    }
    Ok(())
}
