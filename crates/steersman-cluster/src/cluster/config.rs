// SPDX-License-Identifier: Apache-2.0
//! Where the configuration of a cluster comes from when nobody gives one.

use std::{env, fmt};

use kube::{
    Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

/// Nobody says which cluster is meant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InferError {
    /// The file that `KUBECONFIG` names is of no use. Going to another cluster than the one that somebody names would be
    /// worse than going nowhere.
    #[error("the configuration that KUBECONFIG names is of no use")]
    Explicit(#[source] BadKubeconfig),
    /// There is no configuration.
    #[error(
        "no cluster is configured: set KUBECONFIG, run in a Pod ({in_cluster}) or have a ~/.kube/config ({file})"
    )]
    None {
        /// What is missing of a Pod.
        in_cluster: Box<InClusterError>,
        /// What is wrong with the file.
        file: BadKubeconfig,
    },
}

/// A kubeconfig that is of no use. It says where and why, and shows nothing of what is in it: that may be a credential.
///
/// ```
/// use kube::config::Kubeconfig;
/// use steersman_cluster::BadKubeconfig;
///
/// let error = Kubeconfig::from_yaml("users:\n- user:\n    token: [hunter2]\n").unwrap_err();
/// assert!(error.to_string().contains("hunter2"));
/// let error = BadKubeconfig::from(error);
/// assert_eq!(error.to_string(), "it is no kubeconfig: look at line 3 column 12");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadKubeconfig {
    /// Where it is, if it is known.
    place: Option<String>,
    reason: String,
}

impl BadKubeconfig {
    fn at(place: String, error: KubeconfigError) -> Self {
        // One that cannot be read is named already, and may be one of several.
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
            // The parser shows the lines around it.
            KubeconfigError::Parse(error) => match position(&error.to_string()) {
                Some(position) => format!("it is no kubeconfig: look at {position}"),
                None => "it is no kubeconfig".to_owned(),
            },
            KubeconfigError::ReadConfig(error, path) => format!("{} cannot be read: {error}", path.display()),
            // The others say their causes themselves, and name contexts and files.
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

/// The `line 3 column 12` of what a parser says.
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

/// What `KUBECONFIG` says; else, in a Pod, its service account; else `~/.kube/config`. That is the order of
/// controller-runtime: what somebody says explicitly counts also in a Pod.
pub(super) async fn infer() -> Result<Config, InferError> {
    let named = env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty());
    let from_file = async |place: &str| {
        let file = Config::from_kubeconfig(&KubeConfigOptions::default()).await;
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

/// What the text of a kubeconfig says, in its current context.
pub(super) async fn parse(text: &str) -> Result<Config, BadKubeconfig> {
    let parsed = Kubeconfig::from_yaml(text)?;
    Ok(Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_in_a_kubeconfig_is_not_shown() {
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
    fn where_it_is_wrong_is_said() {
        let error = Kubeconfig::from_yaml("users:\n- user:\n    token: hunter2\n   x: y\n").unwrap_err();
        let error = BadKubeconfig::at("/etc/admin.conf".to_owned(), error);
        assert!(
            error
                .to_string()
                .starts_with("/etc/admin.conf: it is no kubeconfig: look at line "),
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
