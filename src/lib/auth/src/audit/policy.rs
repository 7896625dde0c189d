//! The policy: which requests are recorded how. Upstream's file format; the first rule that matches
//! decides.

use super::event::{Level, Stage, Stages};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::yaml;
use ferrokube_registry::UserInfo;

/// Most rules of a policy.
const MAX_RULES: usize = 1_000;
/// Most words in one list of a rule.
const MAX_WORDS: usize = 1_000;

/// A request, as the policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Who (before impersonation).
    pub user: &'a UserInfo,
    /// The verb.
    pub verb: &'a str,
    /// Group, resource, subresource, namespace and name; `None` for a non-resource request.
    pub resource: Option<crate::access::ResourceAccess<'a>>,
    /// The path without its query.
    pub path: &'a str,
}

/// What the policy says of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How much.
    pub level: Level,
    /// Stages that make no event.
    pub omit: Stages,
    /// Objects are recorded without `metadata.managedFields`.
    pub omit_managed_fields: bool,
    /// A refusal is recorded whatever the level says ([`super::AuditLog::conclude`]).
    pub refusals: bool,
    /// Open to every account, and changes nothing: recorded within the budget of refusals.
    pub rationed: bool,
}

impl Plan {
    /// Whether this stage is recorded.
    pub fn wants(&self, stage: Stage) -> bool {
        self.level != Level::None && !self.omit.has(stage)
    }
}

/// Why a policy file is refused.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Not readable YAML or JSON.
    #[error("the audit policy cannot be read: {0}")]
    Syntax(String),
    /// Well-formed, but not a policy.
    #[error("the audit policy is not valid at {field}: {what}")]
    Invalid {
        /// Where.
        field: String,
        /// What is wrong.
        what: String,
    },
}

/// The rules in order.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Vec<Rule>,
    omit: Stages,
    omit_managed_fields: bool,
    /// A file has no word for it.
    refusals: bool,
}

#[derive(Clone, Debug, Default)]
struct Rule {
    level: Level,
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    urls: Vec<String>,
    omit: Stages,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

impl Default for Policy {
    /// At level Metadata and only when complete: every write, every read of secrets, every refusal.
    fn default() -> Self {
        let verbs = [
            "create",
            "update",
            "patch",
            "delete",
            "deletecollection",
            "post",
            "put",
            "proxy",
            "connect",
        ];
        let writes = Rule {
            level: Level::Metadata,
            verbs: verbs.map(str::to_owned).to_vec(),
            ..Rule::default()
        };
        let secrets = GroupResources {
            group: String::new(),
            resources: vec!["secrets".to_owned()],
            names: Vec::new(),
        };
        let secrets = Rule { level: Level::Metadata, resources: vec![secrets], ..Rule::default() };
        let mut omit = Stages::default();
        omit.insert(Stage::RequestReceived);
        Self { rules: vec![writes, secrets], omit, omit_managed_fields: true, refusals: true }
    }
}

impl Policy {
    /// Reads `audit.k8s.io/v1` Policy, YAML or JSON. Fields that do not exist, or are there twice,
    /// are warned about and have no meaning, as in upstream.
    ///
    /// # Errors
    /// [`PolicyError`]; no rule of it is used then.
    pub fn parse(text: &[u8]) -> Result<Self, PolicyError> {
        let decoded = yaml::read(text).map_err(|error| PolicyError::Syntax(error.to_string()))?;
        let document = decoded.document;
        for field in decoded.duplicates.iter().map(ToString::to_string).chain(unknown(&document)) {
            tracing::warn!(
                field,
                "the audit policy has a field that does not exist, or has it twice: it means nothing"
            );
        }
        if document.api_version() != "audit.k8s.io/v1" || document.kind() != "Policy" {
            return Err(invalid("kind", "want apiVersion audit.k8s.io/v1, kind Policy"));
        }
        let items = list(document.get(&["rules"]), "rules")?;
        if items.is_empty() || items.len() > MAX_RULES {
            return Err(invalid("rules", "want between 1 and 1,000 rules"));
        }
        let rules = items
            .iter()
            .enumerate()
            .map(|(index, item)| Rule::parse(item, &format!("rules[{index}]")))
            .collect::<Result<_, _>>()?;
        let omit = stages(document.get(&["omitStages"]), "omitStages")?;
        let omit_managed_fields =
            flag(document.get(&["omitManagedFields"]), "omitManagedFields")?.unwrap_or_default();
        Ok(Self { rules, omit, omit_managed_fields, refusals: false })
    }

    /// Records nothing.
    pub fn nothing() -> Self {
        Self {
            rules: Vec::new(),
            omit: Stages::default(),
            omit_managed_fields: false,
            refusals: false,
        }
    }

    /// What is recorded of a request. Whatever the rules say, objects that carry credentials are
    /// recorded at level Metadata at most.
    pub fn plan(&self, subject: &Subject<'_>) -> Plan {
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(subject)) else {
            return Plan {
                omit: self.omit,
                omit_managed_fields: self.omit_managed_fields,
                refusals: self.refusals,
                ..Plan::default()
            };
        };
        let level =
            if carries_credentials(subject) { rule.level.min(Level::Metadata) } else { rule.level };
        let omit_managed_fields = rule.omit_managed_fields.unwrap_or(self.omit_managed_fields);
        let rationed = self.refusals && is_self_review(subject);
        Plan {
            level,
            omit: self.omit.union(rule.omit),
            omit_managed_fields,
            refusals: self.refusals,
            rationed,
        }
    }
}

fn is_self_review(subject: &Subject<'_>) -> bool {
    subject.resource.is_some_and(|resource| {
        matches!(
            (resource.group, resource.resource),
            ("authorization.k8s.io", "selfsubjectaccessreviews" | "selfsubjectrulesreviews")
                | ("authentication.k8s.io", "selfsubjectreviews")
        )
    })
}

fn carries_credentials(subject: &Subject<'_>) -> bool {
    subject.resource.is_some_and(|resource| {
        matches!(
            (resource.group, resource.resource, resource.subresource),
            ("", "secrets", _)
                | ("", "serviceaccounts", "token")
                | ("authentication.k8s.io", "tokenreviews" | "tokenrequests", _)
        )
    })
}

impl Rule {
    fn parse(item: &Value, at: &str) -> Result<Self, PolicyError> {
        let item = Document::from_value(item.clone()).map_err(|_| invalid(at, "not an object"))?;
        let level = item.str(&["level"]).and_then(Level::parse).ok_or_else(|| {
            invalid(&format!("{at}.level"), "want None, Metadata, Request or RequestResponse")
        })?;
        let rule = Self {
            level,
            users: words(item.get(&["users"]), &format!("{at}.users"))?,
            groups: words(item.get(&["userGroups"]), &format!("{at}.userGroups"))?,
            verbs: words(item.get(&["verbs"]), &format!("{at}.verbs"))?,
            resources: group_resources(
                list(item.get(&["resources"]), &format!("{at}.resources"))?,
                at,
            )?,
            namespaces: words(item.get(&["namespaces"]), &format!("{at}.namespaces"))?,
            urls: words(item.get(&["nonResourceURLs"]), &format!("{at}.nonResourceURLs"))?,
            omit: stages(item.get(&["omitStages"]), &format!("{at}.omitStages"))?,
            omit_managed_fields: flag(
                item.get(&["omitManagedFields"]),
                &format!("{at}.omitManagedFields"),
            )?,
        };
        if !rule.urls.is_empty() && (!rule.resources.is_empty() || !rule.namespaces.is_empty()) {
            return Err(invalid(
                &format!("{at}.nonResourceURLs"),
                "cannot be given together with resources or namespaces",
            ));
        }
        if rule.urls.iter().any(|url| {
            url != "*" && (!url.starts_with('/') || url.trim_end_matches('*').contains('*'))
        }) {
            return Err(invalid(
                &format!("{at}.nonResourceURLs"),
                "want * or a path that may end with *",
            ));
        }
        Ok(rule)
    }

    fn matches(&self, subject: &Subject<'_>) -> bool {
        any_or_empty(&self.users, &subject.user.name)
            && (self.groups.is_empty()
                || subject.user.groups.iter().any(|group| self.groups.contains(group)))
            && any_or_empty(&self.verbs, subject.verb)
            && self.matches_target(subject)
    }

    fn matches_target(&self, subject: &Subject<'_>) -> bool {
        if self.resources.is_empty() && self.namespaces.is_empty() && self.urls.is_empty() {
            return true;
        }
        match &subject.resource {
            Some(resource) => {
                self.urls.is_empty()
                    && any_or_empty(&self.namespaces, resource.namespace)
                    && (self.resources.is_empty()
                        || self.resources.iter().any(|entry| entry.matches(resource)))
            }
            None => self.urls.iter().any(|url| url_matches(url, subject.path)),
        }
    }
}

impl GroupResources {
    fn matches(&self, resource: &crate::access::ResourceAccess<'_>) -> bool {
        self.group == resource.group
            && (self.names.is_empty() || self.names.iter().any(|name| name == resource.name))
            && (self.resources.is_empty()
                || self.resources.iter().any(|pattern| resource_matches(pattern, resource)))
    }
}

/// `pods`, `pods/log`, `pods/*` (also the resource itself), `*/status`, `*` (everything); a bare
/// name does not match subresources.
fn resource_matches(pattern: &str, resource: &crate::access::ResourceAccess<'_>) -> bool {
    match pattern.split_once('/') {
        None => pattern == "*" || (pattern == resource.resource && resource.subresource.is_empty()),
        Some(("*", subresource)) => subresource == resource.subresource,
        Some((name, "*")) => name == resource.resource,
        Some((name, subresource)) => {
            name == resource.resource && subresource == resource.subresource
        }
    }
}

fn url_matches(pattern: &str, path: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == path, |prefix| path.starts_with(prefix))
}

fn any_or_empty(words: &[String], word: &str) -> bool {
    words.is_empty() || words.iter().any(|candidate| candidate == word)
}

fn group_resources(items: &[Value], at: &str) -> Result<Vec<GroupResources>, PolicyError> {
    if items.len() > MAX_WORDS {
        return Err(invalid(&format!("{at}.resources"), "too many entries"));
    }
    items
        .iter()
        .enumerate()
        .map(|(index, item)| {
            let at = format!("{at}.resources[{index}]");
            let group = match item.get("group") {
                None | Some(Value::Null) => "",
                Some(Value::String(group)) if !group.contains('/') => group,
                Some(_) => {
                    return Err(invalid(&format!("{at}.group"), "want a group without a version"));
                }
            };
            let names = words(item.get("resourceNames"), &format!("{at}.resourceNames"))?;
            let resources = words(item.get("resources"), &format!("{at}.resources"))?;
            if resources.is_empty() && !names.is_empty() {
                return Err(invalid(&format!("{at}.resourceNames"), "needs resources"));
            }
            Ok(GroupResources { group: group.to_owned(), resources, names })
        })
        .collect()
}

/// The fields of a policy, of a rule, of an entry of a rule's resources.
const FIELDS: [&[&str]; 3] = [
    &["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"],
    &[
        "level",
        "users",
        "userGroups",
        "verbs",
        "resources",
        "namespaces",
        "nonResourceURLs",
        "omitStages",
        "omitManagedFields",
    ],
    &["group", "resources", "resourceNames"],
];

/// Where fields are that do not exist.
fn unknown(document: &Document) -> Vec<String> {
    let [of_policy, of_rule, of_resources] = FIELDS;
    let mut found: Vec<String> = document
        .fields()
        .keys()
        .filter(|key| !of_policy.contains(&key.as_str()))
        .map(ToString::to_string)
        .collect();
    let strange = |value: &Value, known: &[&str], at: &str| {
        let keys = value
            .as_object()
            .into_iter()
            .flat_map(|map| map.keys())
            .filter(|key| !known.contains(&key.as_str()));
        keys.map(|key| format!("{at}.{key}")).collect::<Vec<_>>()
    };
    for (index, rule) in document.list(&["rules"]).iter().enumerate() {
        found.extend(strange(rule, of_rule, &format!("rules[{index}]")));
        for (entry, resources) in
            rule.get("resources").and_then(Value::as_array).into_iter().flatten().enumerate()
        {
            found.extend(strange(
                resources,
                of_resources,
                &format!("rules[{index}].resources[{entry}]"),
            ));
        }
    }
    found
}

fn list<'a>(value: Option<&'a Value>, at: &str) -> Result<&'a [Value], PolicyError> {
    match value {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(invalid(at, "want a list")),
    }
}

fn flag(value: Option<&Value>, at: &str) -> Result<Option<bool>, PolicyError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(invalid(at, "want true or false")),
    }
}

fn words(value: Option<&Value>, at: &str) -> Result<Vec<String>, PolicyError> {
    let items = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= MAX_WORDS => items,
        Some(_) => return Err(invalid(at, "want a list of at most 1,000 strings")),
    };
    items
        .iter()
        .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| invalid(at, "want strings")))
        .collect()
}

fn stages(value: Option<&Value>, at: &str) -> Result<Stages, PolicyError> {
    let mut stages = Stages::default();
    for word in words(value, at)? {
        stages.insert(Stage::parse(&word).ok_or_else(|| invalid(at, "unknown stage"))?);
    }
    Ok(stages)
}

fn invalid(field: &str, what: &str) -> PolicyError {
    PolicyError::Invalid { field: field.to_owned(), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::ResourceAccess;
    use crate::testing::user;

    fn plan(policy: &Policy, who: &UserInfo, verb: &str, what: &str) -> Plan {
        let path = what.starts_with('/').then_some(what);
        let mut words = what.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (group, resource, subresource, namespace) = (word(), word(), word(), word());
        let resource = ResourceAccess {
            group: group.trim_matches('-'),
            resource,
            subresource: subresource.trim_matches('-'),
            namespace,
            ..ResourceAccess::default()
        };
        let subject = Subject {
            user: who,
            verb,
            resource: path.is_none().then_some(resource),
            path: path.unwrap_or_default(),
        };
        policy.plan(&subject)
    }

    fn level(policy: &Policy, verb: &str, what: &str) -> Level {
        plan(policy, &user("alice", &["devs"]), verb, what).level
    }

    #[test]
    fn by_default_writes_and_reads_of_secrets_are_recorded() {
        let policy = Policy::default();
        for verb in ["create", "update", "patch", "delete", "deletecollection"] {
            assert_eq!(level(&policy, verb, "- configmaps"), Level::Metadata);
        }
        for verb in ["get", "list", "watch"] {
            assert_eq!(level(&policy, verb, "- secrets - n"), Level::Metadata);
            assert_eq!(level(&policy, verb, "- configmaps - n"), Level::None);
        }
        assert_eq!(level(&policy, "get", "/metrics"), Level::None);
        let plan = plan(&policy, &user("alice", &[]), "create", "- configmaps");
        assert!(
            plan.wants(Stage::ResponseComplete)
                && plan.wants(Stage::Panic)
                && !plan.wants(Stage::RequestReceived)
        );
    }

    #[test]
    fn fault_55_self_reviews_are_recorded_within_the_budget_of_refusals() {
        let written = Policy::parse(br#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}"#).expect("a policy");
        let is_rationed = |policy: &Policy, what: &str| {
            plan(policy, &user("alice", &[]), "create", what).rationed
        };
        for what in [
            "authorization.k8s.io selfsubjectaccessreviews",
            "authorization.k8s.io selfsubjectrulesreviews",
            "authentication.k8s.io selfsubjectreviews",
        ] {
            assert!(
                is_rationed(&Policy::default(), what) && !is_rationed(&written, what),
                "{what}"
            );
        }
        for what in [
            "authorization.k8s.io subjectaccessreviews",
            "authentication.k8s.io tokenreviews",
            "- configmaps",
        ] {
            assert!(!is_rationed(&Policy::default(), what), "{what}");
        }
    }

    const FILE: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: ["RequestReceived"]
omitManagedFields: true
rules:
- level: None
  users: ["system:kube-proxy"]
  verbs: ["watch"]
- level: None
  userGroups: ["devs"]
  nonResourceURLs: ["/api*", "/version"]
- level: Request
  resources:
  - group: ""
    resources: ["configmaps"]
  namespaces: ["kube-system"]
  omitStages: ["ResponseStarted"]
  omitManagedFields: false
- level: RequestResponse
  resources:
  - group: ""
    resources: ["pods/*", "*/status", "secrets", "serviceaccounts/token"]
  - group: authentication.k8s.io
- level: Metadata
"#;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = Policy::parse(FILE.as_bytes()).expect("a policy");
        assert_eq!(
            plan(&policy, &user("system:kube-proxy", &[]), "watch", "- configmaps").level,
            Level::None
        );
        assert_eq!(level(&policy, "watch", "- configmaps"), Level::Metadata);
        assert_eq!(level(&policy, "get", "/apis/x"), Level::None);
        assert_eq!(level(&policy, "get", "/version"), Level::None);
        assert_eq!(level(&policy, "get", "/version/x"), Level::Metadata);
        assert_eq!(level(&policy, "create", "- configmaps - kube-system"), Level::Request);
        assert_eq!(level(&policy, "create", "- configmaps - other"), Level::Metadata);
        assert_eq!(level(&policy, "create", "- pods exec n"), Level::RequestResponse);
        assert_eq!(
            level(&policy, "create", "- pods - n"),
            Level::RequestResponse,
            "as upstream's code matches"
        );
        assert_eq!(level(&policy, "create", "- nodes"), Level::Metadata);
        assert_eq!(level(&policy, "update", "- nodes status"), Level::RequestResponse);
        let request = plan(&policy, &user("alice", &[]), "create", "- configmaps - kube-system");
        assert!(
            !request.omit_managed_fields
                && !request.wants(Stage::ResponseStarted)
                && !request.wants(Stage::RequestReceived)
        );
        assert!(plan(&policy, &user("alice", &[]), "get", "- pods").omit_managed_fields);
    }

    #[test]
    fn fault_54_bodies_with_credentials_are_never_recorded() {
        let policy = Policy::parse(FILE.as_bytes()).expect("a policy");
        for what in [
            "- secrets - n",
            "- secrets status n",
            "- serviceaccounts token n",
            "authentication.k8s.io tokenreviews",
        ] {
            assert_eq!(level(&policy, "create", what), Level::Metadata, "{what}");
        }
    }

    #[test]
    fn bad_policies_name_the_field() {
        let field = |rule: &str| match Policy::parse(
            format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {rule}\n").as_bytes(),
        ) {
            Err(PolicyError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field("level: Everything"), "rules[0].level");
        assert_eq!(field("{level: Metadata, omitStages: [Never]}"), "rules[0].omitStages");
        assert_eq!(
            field("{level: Metadata, nonResourceURLs: [\"/a*b\"]}"),
            "rules[0].nonResourceURLs"
        );
        assert_eq!(
            field("{level: Metadata, nonResourceURLs: [\"/a\"], namespaces: [ns]}"),
            "rules[0].nonResourceURLs"
        );
        assert_eq!(field("{level: Metadata, users: [1]}"), "rules[0].users");
        assert_eq!(
            field("{level: Metadata, resources: [{group: a/v1}]}"),
            "rules[0].resources[0].group"
        );
        assert_eq!(
            field("{level: Metadata, resources: [{group: 1}]}"),
            "rules[0].resources[0].group"
        );
        assert_eq!(
            field("{level: Metadata, resources: {group: a}}"),
            "rules[0].resources",
            "it would match everything"
        );
        assert_eq!(
            field("{level: Metadata, omitManagedFields: \"yes\"}"),
            "rules[0].omitManagedFields"
        );
        assert!(matches!(
            Policy::parse(b"apiVersion: v1\nkind: Policy"),
            Err(PolicyError::Invalid { .. })
        ));
        assert!(matches!(Policy::parse(b"\t:"), Err(PolicyError::Syntax(_))));
    }

    #[test]
    fn fields_that_do_not_exist_are_found() {
        let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrule: []\nrules:\n- {level: Metadata, user: [a], resources: [{name: x}]}\n";
        let document = yaml::read(text.as_bytes()).expect("YAML").document;
        assert_eq!(unknown(&document), ["rule", "rules[0].user", "rules[0].resources[0].name"]);
        assert!(Policy::parse(text.as_bytes()).is_ok());
        assert!(unknown(&yaml::read(FILE.as_bytes()).expect("YAML").document).is_empty());
    }
}
