//! Subresources that connect: logs, terminals, ports and proxies, whose bodies are no objects.

use super::{ALL, ANY, PublishedRoute, READ, ResourcePath, camel, group_word, tag};
use ferrokube_resource::{Subresource, Verbs};

const LOG: &str = "log";
const LOG_OPTIONS: &[&str] = &[
    "container",
    "follow",
    "insecureSkipTLSVerifyBackend",
    "limitBytes",
    "pretty",
    "previous",
    "sinceSeconds",
    "stream",
    "tailLines",
    "timestamps",
];
/// Media types of logs and of errors.
const LOGS: &[&str] = &["text/plain", ALL[0], ALL[1], ALL[2]];

/// Options of the others, by the subresource.
const OPTIONS: [(&str, &[&str]); 4] = [
    ("attach", &["container", "stderr", "stdin", "stdout", "tty"]),
    ("exec", &["command", "container", "stderr", "stdin", "stdout", "tty"]),
    ("portforward", &["ports"]),
    (PROXY, &["path"]),
];
const PROXY: &str = "proxy";

/// Methods, by the verb that permits them.
const METHODS: [(&str, Verbs); 7] = [
    ("delete", Verbs::DELETE),
    ("get", Verbs::GET),
    ("head", Verbs::DELETE),
    ("options", Verbs::DELETE),
    ("patch", Verbs::PATCH),
    ("post", Verbs::CREATE),
    ("put", Verbs::UPDATE),
];

impl ResourcePath<'_> {
    /// The operations of a subresource that connects.
    pub(super) fn connections(&self, part: &Subresource) -> Vec<PublishedRoute> {
        if part.name == LOG {
            let id = self.id(&READ);
            return vec![PublishedRoute {
                action: Some(("get", self.kind())),
                description: self.describe(&READ),
                parameters: LOG_OPTIONS.to_vec(),
                produces: LOGS,
                ..self.connection("get", id)
            }];
        }
        let methods = || METHODS.iter().filter(|(_, verb)| part.verbs.has(*verb));
        let mut all: Vec<PublishedRoute> = methods()
            .map(|(method, _)| self.connection(method, self.connect_id(method, part)))
            .collect();
        if part.name == PROXY {
            let below = format!("{}/{{path}}", self.text);
            all.extend(methods().map(|(method, _)| PublishedRoute {
                path: below.clone(),
                ..self.connection(method, format!("{}WithPath", self.connect_id(method, part)))
            }));
        }
        all
    }

    fn connection(&self, method: &'static str, id: String) -> PublishedRoute {
        let definition = self.routes.definition;
        let name = self.subresource.map_or("", |part| part.name);
        let parameters = OPTIONS.iter().find(|(known, _)| *known == name).map(|(_, names)| *names);
        PublishedRoute {
            path: self.text.clone(),
            method,
            id,
            tag: tag(&definition.group, &definition.versions[self.routes.index].name),
            description: format!(
                "connect {} requests to {name} of {}",
                method.to_ascii_uppercase(),
                definition.kind
            ),
            action: Some(("connect", self.kind())),
            parameters: parameters.unwrap_or_default().to_vec(),
            body: None,
            consumes: ANY,
            produces: ANY,
            codes: &[200],
            result: None,
        }
    }

    /// `connectCoreV1GetNamespacedPodExec`
    fn connect_id(&self, method: &str, part: &Subresource) -> String {
        let definition = self.routes.definition;
        let (group, method) = (group_word(&definition.group), camel(method, true));
        let version = camel(&definition.versions[self.routes.index].name, true);
        let namespaced = if self.namespaced { "Namespaced" } else { "" };
        let (kind, subresource) = (&definition.kind, camel(part.name, true));
        format!("connect{group}{version}{method}{namespaced}{kind}{subresource}")
    }
}
