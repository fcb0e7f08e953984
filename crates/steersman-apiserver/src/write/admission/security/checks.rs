// SPDX-License-Identifier: Apache-2.0
//! The checks of the Pod Security Standards, with the messages of the real server.

use std::collections::BTreeSet;

use serde_json::Value;

/// A rule that a Pod violates.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) reason: String,
    pub(super) detail: String,
}

/// Capabilities that containers have by default.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Sysctls that are allowed, with the minor version that first allows them.
const SYSCTLS: [(&str, u32); 14] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
    ("net.ipv4.tcp_slow_start_after_idle", 37),
    ("net.ipv4.tcp_notsent_lowat", 37),
];

/// Volume types that the restricted level allows.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Returns the violations of a level in a minor version, in the order of the real server.
pub(super) fn violations(is_restricted: bool, minor: u32, pod: &Value) -> Vec<Violation> {
    let pod = Pod {
        metadata: &pod["metadata"],
        spec: &pod["spec"],
        minor,
    };
    let baseline = [
        pod.app_armor(),
        pod.capabilities_baseline()
            .filter(|_| !is_restricted || minor < 22),
        pod.host_namespaces(),
        pod.host_path_volumes().filter(|_| !is_restricted),
        pod.host_ports(),
        pod.host_probes().filter(|_| minor >= 34),
        pod.privileged(),
        pod.proc_mount(is_restricted),
        pod.se_linux(),
        pod.seccomp(false).filter(|_| !is_restricted && minor >= 19),
        pod.sysctls(),
        pod.windows_host_process(),
    ];
    let mut found: Vec<Violation> = baseline.into_iter().flatten().collect();
    if is_restricted {
        let is_windows = minor >= 25 && pod.spec.pointer("/os/name").is_some_and(|name| name == "windows");
        let restricted = [
            pod.privilege_escalation().filter(|_| minor >= 8 && !is_windows),
            pod.capabilities_restricted()
                .filter(|_| minor >= 22 && !is_windows),
            pod.restricted_volumes(),
            pod.run_as_non_root().filter(|_| !pod.is_relaxed()),
            pod.run_as_user().filter(|_| minor >= 23 && !pod.is_relaxed()),
            pod.seccomp(true).filter(|_| minor >= 19 && !is_windows),
        ];
        found.extend(restricted.into_iter().flatten());
    }
    found
}

struct Pod<'a> {
    metadata: &'a Value,
    spec: &'a Value,
    minor: u32,
}

fn violation(reason: &str, detail: String) -> Violation {
    Violation {
        reason: reason.to_owned(),
        detail,
    }
}

fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

fn quoted<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names = names.into_iter();
    names
        .map(|name| format!("{:?}", name.as_ref()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Formats `container "a"`, or `containers "a", "b"`.
fn named(containers: &[String]) -> String {
    format!(
        "{} {}",
        plural("container", "containers", containers.len()),
        quoted(containers)
    )
}

/// Names the setters of a forbidden value: the Pod, containers, or both.
fn setters(by_pod: bool, containers: &[String]) -> Option<String> {
    let mut all = Vec::new();
    if by_pod {
        all.push("pod".to_owned());
    }
    if !containers.is_empty() {
        all.push(named(containers));
    }
    (!all.is_empty()).then(|| all.join(" and "))
}

fn is_true(value: &Value) -> bool {
    *value == true
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

impl Pod<'_> {
    /// Returns init containers, containers and ephemeral containers.
    fn containers(&self) -> impl Iterator<Item = &Value> {
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        let lists = lists.into_iter().filter_map(|list| self.spec[list].as_array());
        lists.flatten()
    }

    /// Returns the names of the containers that match a predicate.
    fn names(&self, holds: impl Fn(&Value) -> bool) -> Vec<String> {
        let found = self.containers().filter(|container| holds(container));
        found
            .map(|container| container["name"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Returns true if the Pod has its own user namespace, in which root has no rights on the node.
    fn is_relaxed(&self) -> bool {
        self.minor >= 35 && self.spec["hostUsers"] == false
    }

    fn app_armor(&self) -> Option<Violation> {
        const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
        let kind = |context: &Value| {
            let kind = context["appArmorProfile"]["type"].as_str()?;
            (!matches!(kind, "RuntimeDefault" | "Localhost")).then(|| kind.to_owned())
        };
        let own = kind(&self.spec["securityContext"]);
        let containers = self.names(|container| kind(&container["securityContext"]).is_some());
        let mut values: BTreeSet<String> = own.iter().cloned().collect();
        values.extend(
            self.containers()
                .filter_map(|container| kind(&container["securityContext"])),
        );
        let is_good =
            |value: &str| value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
        let annotations = self.metadata["annotations"].as_object().into_iter().flatten();
        let annotations: Vec<String> = annotations
            .filter(|(key, value)| {
                key.starts_with(ANNOTATION) && !is_good(value.as_str().unwrap_or_default())
            })
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let mut setters: Vec<String> = setters(own.is_some(), &containers).into_iter().collect();
        if !annotations.is_empty() {
            setters.push(plural("annotation", "annotations", annotations.len()).to_owned());
        }
        let values: Vec<String> = values.into_iter().chain(annotations).collect();
        let reason = plural(
            "forbidden AppArmor profile",
            "forbidden AppArmor profiles",
            values.len(),
        );
        let detail = format!(
            "{} must not set AppArmor profile type to {}",
            setters.join(" and "),
            quoted(&values)
        );
        (!setters.is_empty()).then(|| violation(reason, detail))
    }

    /// Names the forbidden capabilities that containers add, and these containers.
    fn added(&self, is_allowed: impl Fn(&str) -> bool) -> Option<String> {
        let bad = |container: &Value| -> BTreeSet<String> {
            let added = texts(&container["securityContext"]["capabilities"]["add"]);
            added
                .filter(|name| !is_allowed(name))
                .map(str::to_owned)
                .collect()
        };
        let containers = self.names(|container| !bad(container).is_empty());
        let capabilities: BTreeSet<String> = self.containers().flat_map(bad).collect();
        (!containers.is_empty()).then(|| {
            let (containers, capabilities) = (named(&containers), quoted(&capabilities));
            format!("{containers} must not include {capabilities} in securityContext.capabilities.add")
        })
    }

    fn capabilities_baseline(&self) -> Option<Violation> {
        let detail = self.added(|name| CAPABILITIES.contains(&name))?;
        Some(violation("non-default capabilities", detail))
    }

    fn capabilities_restricted(&self) -> Option<Violation> {
        let keeps = self.names(|container| {
            let mut dropped = texts(&container["securityContext"]["capabilities"]["drop"]);
            !dropped.any(|name| name == "ALL")
        });
        let mut details = Vec::new();
        if !keeps.is_empty() {
            let keeps = named(&keeps);
            details.push(format!(
                "{keeps} must set securityContext.capabilities.drop=[\"ALL\"]"
            ));
        }
        details.extend(self.added(|name| name == "NET_BIND_SERVICE"));
        (!details.is_empty()).then(|| violation("unrestricted capabilities", details.join("; ")))
    }

    fn host_namespaces(&self) -> Option<Violation> {
        let fields = ["hostNetwork", "hostPID", "hostIPC"];
        let used = fields.into_iter().filter(|field| is_true(&self.spec[*field]));
        let used: Vec<String> = used.map(|field| format!("{field}=true")).collect();
        (!used.is_empty()).then(|| violation("host namespaces", used.join(", ")))
    }

    /// Returns the names of the volumes that match a predicate.
    fn volumes(&self, holds: impl Fn(&Value) -> bool) -> Vec<String> {
        let volumes = self.spec["volumes"].as_array().into_iter().flatten();
        let found = volumes.filter(|volume| holds(volume));
        found
            .map(|volume| volume["name"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    fn host_path_volumes(&self) -> Option<Violation> {
        let volumes = self.volumes(|volume| volume["hostPath"].is_object());
        let detail = format!(
            "{} {}",
            plural("volume", "volumes", volumes.len()),
            quoted(&volumes)
        );
        (!volumes.is_empty()).then(|| violation("hostPath volumes", detail))
    }

    fn restricted_volumes(&self) -> Option<Violation> {
        let source = |volume: &Value| -> Option<String> {
            let fields = volume.as_object()?;
            if VOLUMES.iter().any(|known| fields.contains_key(*known)) {
                return None;
            }
            let source = fields.keys().find(|field| *field != "name");
            Some(source.map_or("unknown", String::as_str).to_owned())
        };
        let volumes = self.volumes(|volume| source(volume).is_some());
        let all = self.spec["volumes"].as_array().into_iter().flatten();
        let kinds: BTreeSet<String> = all.filter_map(source).collect();
        let detail = format!(
            "{} {} {} {} {}",
            plural("volume", "volumes", volumes.len()),
            quoted(&volumes),
            plural("uses", "use", volumes.len()),
            plural("restricted volume type", "restricted volume types", kinds.len()),
            quoted(&kinds)
        );
        (!volumes.is_empty()).then(|| violation("restricted volume types", detail))
    }

    fn host_ports(&self) -> Option<Violation> {
        let ports = |container: &Value| -> BTreeSet<String> {
            let ports = container["ports"].as_array().into_iter().flatten();
            let ports = ports.filter_map(|port| port["hostPort"].as_i64());
            ports
                .filter(|port| *port != 0)
                .map(|port| port.to_string())
                .collect()
        };
        let containers = self.names(|container| !ports(container).is_empty());
        let numbers: BTreeSet<String> = self.containers().flat_map(ports).collect();
        let list = numbers.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let detail = format!(
            "{} {} {} {list}",
            named(&containers),
            plural("uses", "use", containers.len()),
            plural("hostPort", "hostPorts", numbers.len()),
        );
        (!containers.is_empty()).then(|| violation("hostPort", detail))
    }

    fn host_probes(&self) -> Option<Violation> {
        let hosts = |container: &Value| -> BTreeSet<String> {
            let paths = [
                "/livenessProbe",
                "/readinessProbe",
                "/startupProbe",
                "/lifecycle/postStart",
                "/lifecycle/preStop",
            ];
            let handlers = paths.iter().filter_map(|path| container.pointer(path));
            let hosts =
                handlers.flat_map(|handler| ["httpGet", "tcpSocket"].map(|kind| &handler[kind]["host"]));
            let hosts = hosts.filter_map(Value::as_str).filter(|host| !host.is_empty());
            hosts.map(str::to_owned).collect()
        };
        let mut containers = self.names(|container| !hosts(container).is_empty());
        containers.sort_unstable();
        let all: BTreeSet<String> = self.containers().flat_map(hosts).collect();
        let detail = format!(
            "{} {} {} {}",
            named(&containers),
            plural("uses", "use", containers.len()),
            plural("probe or lifecycle host", "probe or lifecycle hosts", all.len()),
            quoted(&all)
        );
        (!containers.is_empty()).then(|| violation("probe or lifecycle host", detail))
    }

    fn privileged(&self) -> Option<Violation> {
        let containers = self.names(|container| is_true(&container["securityContext"]["privileged"]));
        let detail = format!(
            "{} must not set securityContext.privileged=true",
            named(&containers)
        );
        (!containers.is_empty()).then(|| violation("privileged", detail))
    }

    fn proc_mount(&self, is_restricted: bool) -> Option<Violation> {
        if !is_restricted && self.is_relaxed() {
            return None;
        }
        let kind = |container: &Value| {
            let kind = container["securityContext"]["procMount"].as_str()?;
            (kind != "Default").then(|| kind.to_owned())
        };
        let containers = self.names(|container| kind(container).is_some());
        let kinds: BTreeSet<String> = self.containers().filter_map(kind).collect();
        let detail = format!(
            "{} must not set securityContext.procMount to {}",
            named(&containers),
            quoted(&kinds)
        );
        (!containers.is_empty()).then(|| violation("procMount", detail))
    }

    fn se_linux(&self) -> Option<Violation> {
        let text = |options: &Value, field: &str| options[field].as_str().unwrap_or_default().to_owned();
        let is_allowed = |kind: &str| {
            let known = ["", "container_t", "container_init_t", "container_kvm_t"];
            known.contains(&kind) || self.minor >= 31 && kind == "container_engine_t"
        };
        let is_bad = |context: &Value| {
            let options = &context["seLinuxOptions"];
            let is_set = |field: &str| !text(options, field).is_empty();
            options.is_object() && (!is_allowed(&text(options, "type")) || is_set("user") || is_set("role"))
        };
        let own = &self.spec["securityContext"];
        let containers = self.names(|container| is_bad(&container["securityContext"]));
        let setters = setters(is_bad(own), &containers)?;
        let contexts = self.containers().map(|container| &container["securityContext"]);
        let options: Vec<&Value> = [own].into_iter().chain(contexts).collect();
        let options = || options.iter().map(|context| &context["seLinuxOptions"]);
        let kinds: BTreeSet<String> = options()
            .map(|options| text(options, "type"))
            .filter(|kind| !is_allowed(kind))
            .collect();
        let mut data = Vec::new();
        if !kinds.is_empty() {
            data.push(format!(
                "{} {}",
                plural("type", "types", kinds.len()),
                quoted(&kinds)
            ));
        }
        for field in ["user", "role"] {
            if options().any(|options| !text(options, field).is_empty()) {
                data.push(format!("{field} may not be set"));
            }
        }
        let data = data.join("; ");
        let detail = format!("{setters} set forbidden securityContext.seLinuxOptions: {data}");
        Some(violation("seLinuxOptions", detail))
    }

    fn seccomp(&self, is_required: bool) -> Option<Violation> {
        let kind = |context: &Value| context["seccompProfile"]["type"].as_str().map(str::to_owned);
        let is_bad = |kind: &String| !matches!(kind.as_str(), "Localhost" | "RuntimeDefault");
        let own = kind(&self.spec["securityContext"]);
        let of = |container: &Value| kind(&container["securityContext"]);
        let containers = self.names(|container| of(container).is_some_and(|kind| is_bad(&kind)));
        if let Some(setters) = setters(own.as_ref().is_some_and(is_bad), &containers) {
            let all = own.into_iter().chain(self.containers().filter_map(of));
            let kinds: BTreeSet<String> = all.filter(is_bad).collect();
            let kinds = quoted(&kinds);
            let detail = format!("{setters} must not set securityContext.seccompProfile.type to {kinds}");
            return Some(violation("seccompProfile", detail));
        }
        let without = self.names(|container| of(container).is_none());
        let detail = format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            named(&without)
        );
        (is_required && own.is_none() && !without.is_empty()).then(|| violation("seccompProfile", detail))
    }

    fn sysctls(&self) -> Option<Violation> {
        let set = self.spec["securityContext"]["sysctls"]
            .as_array()
            .into_iter()
            .flatten();
        let names = set.filter_map(|sysctl| sysctl["name"].as_str());
        let is_allowed = |name: &str| {
            let known = SYSCTLS.iter().find(|(known, _)| *known == name);
            known.is_some_and(|(_, since)| self.minor >= *since)
        };
        let bad: Vec<&str> = names.filter(|name| !is_allowed(name)).collect();
        (!bad.is_empty()).then(|| violation("forbidden sysctls", bad.join(", ")))
    }

    fn windows_host_process(&self) -> Option<Violation> {
        let is_set = |context: &Value| is_true(&context["windowsOptions"]["hostProcess"]);
        let containers = self.names(|container| is_set(&container["securityContext"]));
        let setters = setters(is_set(&self.spec["securityContext"]), &containers)?;
        let detail = format!("{setters} must not set securityContext.windowsOptions.hostProcess=true");
        Some(violation("hostProcess", detail))
    }

    fn privilege_escalation(&self) -> Option<Violation> {
        let containers =
            self.names(|container| container["securityContext"]["allowPrivilegeEscalation"] != false);
        let detail = format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            named(&containers)
        );
        (!containers.is_empty()).then(|| violation("allowPrivilegeEscalation != false", detail))
    }

    fn run_as_non_root(&self) -> Option<Violation> {
        const REASON: &str = "runAsNonRoot != true";
        let own = &self.spec["securityContext"]["runAsNonRoot"];
        let of = |container: &Value| container["securityContext"]["runAsNonRoot"].as_bool();
        let containers = self.names(|container| of(container) == Some(false));
        if let Some(setters) = setters(*own == false, &containers) {
            let detail = format!("{setters} must not set securityContext.runAsNonRoot=false");
            return Some(violation(REASON, detail));
        }
        let without = self.names(|container| of(container).is_none());
        let detail = format!(
            "pod or {} must set securityContext.runAsNonRoot=true",
            named(&without)
        );
        (!is_true(own) && !without.is_empty()).then(|| violation(REASON, detail))
    }

    fn run_as_user(&self) -> Option<Violation> {
        let is_root = |context: &Value| context["runAsUser"].as_i64() == Some(0);
        let containers = self.names(|container| is_root(&container["securityContext"]));
        let setters = setters(is_root(&self.spec["securityContext"]), &containers)?;
        Some(violation(
            "runAsUser=0",
            format!("{setters} must not set runAsUser=0"),
        ))
    }
}
