// SPDX-License-Identifier: Apache-2.0
//! Infers the configuration of a cluster from the environment.

use std::{env, fmt, path::PathBuf};

use kube::{
    Config,
    config::{Cluster, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

/// The environment names no usable cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InferError {
    /// The file that `KUBECONFIG` names is invalid. Falling back to another cluster than the named one would be worse
    /// than failing.
    #[error("the file that KUBECONFIG names is invalid")]
    Explicit(#[source] BadKubeconfig),
    /// There is no configuration.
    #[error(
        "no cluster configured; set KUBECONFIG, run in a Pod ({in_cluster}) or create ~/.kube/config ({file})"
    )]
    None {
        /// Reason why the service account of a Pod cannot be used.
        in_cluster: Box<InClusterError>,
        /// Reason why the file cannot be used.
        file: BadKubeconfig,
    },
}

/// Error of an invalid kubeconfig. It shows the position and the cause, but no content, which might be a credential.
///
/// ```
/// use kube::config::Kubeconfig;
/// use steersman_cluster::BadKubeconfig;
///
/// let error = Kubeconfig::from_yaml("users:\n- user:\n    token: [hunter2]\n").unwrap_err();
/// assert!(error.to_string().contains("hunter2"));
/// let error = BadKubeconfig::from(error);
/// assert_eq!(error.to_string(), "invalid kubeconfig at line 3 column 12");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadKubeconfig {
    /// File of the error, if known.
    place: Option<String>,
    reason: String,
}

impl BadKubeconfig {
    fn at(place: String, error: KubeconfigError) -> Self {
        // kube's message names a file that cannot be read; it can be one of several.
        let place = (!matches!(error, KubeconfigError::ReadConfig(..))).then_some(place);
        Self {
            place,
            ..Self::from(error)
        }
    }
}

impl From<KubeconfigError> for BadKubeconfig {
    fn from(error: KubeconfigError) -> Self {
        let reason = match error {
            // The parser's message shows the lines around the error.
            KubeconfigError::Parse(error) => match position(&error.to_string()) {
                Some(position) => format!("invalid kubeconfig at {position}"),
                None => "invalid kubeconfig".to_owned(),
            },
            KubeconfigError::ReadConfig(error, path) => format!("{} cannot be read: {error}", path.display()),
            // The other messages contain their causes, and name only contexts and files.
            other => other.to_string(),
        };
        Self { place: None, reason }
    }
}

impl fmt::Display for BadKubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for BadKubeconfig {}

/// Extracts the position, such as `line 3 column 12`, from a message of the parser.
fn position(text: &str) -> Option<String> {
    let mut words = text
        .lines()
        .next()?
        .split([' ', ':'])
        .skip_while(|word| *word != "line");
    let (_, line, _, column) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let is_number = |word: &str| word.parse::<u64>().is_ok();
    (is_number(line) && is_number(column)).then(|| format!("line {line} column {column}"))
}

/// Infers the configuration: `KUBECONFIG`; else, in a Pod, its service account; else `~/.kube/config`. This is the
/// order of controller-runtime: an explicit setting takes precedence in a Pod too.
pub(super) async fn infer() -> Result<Config, InferError> {
    let named = env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty());
    let from_file = async |place: &str| {
        let file = async { load(Kubeconfig::read()?).await }.await;
        file.map_err(|error| BadKubeconfig::at(place.to_owned(), error))
    };
    let mut config = if let Some(paths) = named {
        let place = paths.to_string_lossy();
        from_file(&place).await.map_err(InferError::Explicit)?
    } else {
        match Config::incluster() {
            Ok(config) => config,
            Err(error) => from_file("~/.kube/config")
                .await
                .map_err(|file| InferError::None {
                    in_cluster: Box::new(error),
                    file,
                })?,
        }
    };
    config.apply_debug_overrides();
    Ok(config)
}

/// Parses the text of a kubeconfig and uses its current context.
pub(super) async fn parse(text: &str) -> Result<Config, BadKubeconfig> {
    let parsed = Kubeconfig::from_yaml(text)?;
    Ok(load(parsed).await?)
}

/// Converts the current context of a kubeconfig.
///
/// kube reads the environment for a cluster without a `proxy-url`, and ignores `NO_PROXY`; the connections read it later,
/// as client-go does. kube also forgets the path of the CA, which is needed to read the file again.
async fn load(mut kubeconfig: Kubeconfig) -> Result<Config, KubeconfigError> {
    const UNSET: &str = "http://unset.invalid";
    let mut has_proxy = false;
    let mut authority = None;
    if let Some(cluster) = current_cluster(&mut kubeconfig) {
        has_proxy = cluster.proxy_url.as_ref().is_some_and(|url| !url.is_empty());
        if !has_proxy {
            cluster.proxy_url = Some(UNSET.to_owned());
        }
        if cluster.certificate_authority_data.is_none() {
            authority = cluster.certificate_authority.as_ref().map(PathBuf::from);
        }
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = config.proxy_url.filter(|_| has_proxy);
    config.root_cert_file = authority;
    Ok(config)
}

/// Returns the cluster of the current context, as kube finds it.
fn current_cluster(kubeconfig: &mut Kubeconfig) -> Option<&mut Cluster> {
    let current = kubeconfig.current_context.as_ref()?;
    let mut contexts = kubeconfig.contexts.iter();
    let context = contexts.find(|named| named.name == *current)?.context.as_ref()?;
    let mut clusters = kubeconfig.clusters.iter_mut();
    clusters
        .find(|named| named.name == context.cluster)?
        .cluster
        .as_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn errors_do_not_show_the_content_of_a_kubeconfig() {
        let user = "apiVersion: v1\nkind: Config\nusers:\n- name: me\n  user:\n";
        for broken in [
            "    token: hunter2\n   client-key-data: hunter2\n",
            "    token: [hunter2]\n",
            "    token: \"hunter2\n",
            "    client-certificate-data: hunter2\n",
            "    exec: hunter2\n",
            "    ? hunter2\n",
            "    token: &hunter2 *hunter3\n",
        ] {
            let text = format!("{user}{broken}");
            let error = parse(&text).await.unwrap_err();
            for shown in [error.to_string(), format!("{error:?}")] {
                assert!(!shown.contains("hunter"), "{shown}");
            }
        }
    }

    #[test]
    fn errors_show_the_position_in_a_kubeconfig() {
        let error = Kubeconfig::from_yaml("users:\n- user:\n    token: hunter2\n   x: y\n").unwrap_err();
        let error = BadKubeconfig::at("/etc/admin.conf".to_owned(), error);
        assert!(
            error
                .to_string()
                .starts_with("/etc/admin.conf: invalid kubeconfig at line "),
            "{error}"
        );
        assert_eq!(
            position("error: line 3 column 12: hunter2"),
            Some("line 3 column 12".to_owned())
        );
        assert_eq!(position("line hunter2 column 12: no"), None);
        let error = Kubeconfig::read_from("/not/there").unwrap_err();
        let error = BadKubeconfig::at("/not/there:/etc/admin.conf".to_owned(), error);
        assert!(
            error.to_string().starts_with("/not/there cannot be read: "),
            "{error}"
        );
    }
}
