//! FlowSchemas and PriorityLevelConfigurations, parsed.

use ferrokube_apimachinery::document::{Array, Document, Value};
use std::sync::Arc;

/// Name of the mandatory schema and level of masters.
pub(super) const EXEMPT: &str = "exempt";
/// Name of the mandatory schema and level of all other users.
pub(super) const CATCH_ALL: &str = "catch-all";
const CATCH_ALL_SHARES: u32 = 5;

/// All schemas and levels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowConfig {
    /// In order of precedence.
    pub schemas: Vec<SchemaConfig>,
    /// By name.
    pub levels: Vec<LevelConfig>,
}

/// A FlowSchema.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaConfig {
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`; empty if the object does not exist.
    pub uid: String,
    /// Name of its level.
    pub level: String,
    /// Lower ones come first.
    pub precedence: i64,
    /// Source of flow names.
    pub distinguisher: Distinguisher,
    /// Requests that match one of them.
    pub rules: Arc<[FlowRule]>,
}

/// The method of dividing a schema's requests into flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinguisher {
    /// One flow.
    None,
    /// By user name.
    User,
    /// By the namespace of the request; cluster-scoped ones share a flow.
    Namespace,
}

/// Requests of subjects.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowRule {
    /// One of them has to match.
    pub subjects: Vec<FlowSubject>,
    /// One of them has to match a request for a resource.
    pub resources: Vec<ResourceRule>,
    /// One of them has to match any other request.
    pub paths: Vec<PathRule>,
}

/// Senders of requests that a rule matches.
#[derive(Clone, Debug, PartialEq)]
pub enum FlowSubject {
    /// By name; `*`: all.
    User(String),
    /// By name; `*`: all.
    Group(String),
    /// Namespace and name; `*`: all of the namespace.
    ServiceAccount(String, String),
}

/// Requests for resources.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceRule {
    pub(super) verbs: Names,
    pub(super) groups: Names,
    pub(super) resources: Names,
    pub(super) namespaces: Names,
    pub(super) cluster_scope: bool,
}

/// Other requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathRule {
    pub(super) verbs: Names,
    pub(super) paths: Names,
}

/// A list, or all.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Names {
    pub(super) is_all: bool,
    pub(super) names: Vec<String>,
}

/// A PriorityLevelConfiguration.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelConfig {
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`; empty if the object does not exist.
    pub uid: String,
    /// Weight in the division of the server's seats.
    pub shares: u32,
    /// Percentage of its seats that other levels may use.
    pub lendable_percent: u32,
    /// Max seats borrowed from other levels, as a percentage of its own; `None`: unlimited.
    pub borrowing_percent: Option<u32>,
    /// Treatment of requests without seats.
    pub discipline: Discipline,
}

/// Treatment of requests without seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// They need none.
    Exempt,
    /// They are rejected.
    Reject,
    /// They wait.
    Queue {
        /// Number of queues.
        queues: u32,
        /// Queues of one flow.
        hand: u8,
        /// Max requests in a queue.
        length: u32,
    },
}

impl FlowConfig {
    /// Schemas of levels that do not exist are dropped, missing mandatory ones are added.
    pub fn new(
        schemas: impl IntoIterator<Item = SchemaConfig>,
        levels: impl IntoIterator<Item = LevelConfig>,
    ) -> Self {
        let mut levels: Vec<LevelConfig> = levels.into_iter().collect();
        for (name, discipline, shares) in
            [(EXEMPT, Discipline::Exempt, 0), (CATCH_ALL, Discipline::Reject, CATCH_ALL_SHARES)]
        {
            if !levels.iter().any(|level| level.name == name) {
                levels.push(LevelConfig::new(name, shares, discipline));
            }
        }
        levels.sort_by(|one, other| one.name.cmp(&other.name));
        let is_known = |schema: &SchemaConfig| {
            levels.binary_search_by(|level| level.name.cmp(&schema.level)).is_ok()
        };
        let mut schemas: Vec<SchemaConfig> = schemas.into_iter().filter(is_known).collect();
        for (name, precedence, groups) in [
            (EXEMPT, 1, ["system:masters"].as_slice()),
            (CATCH_ALL, 10_000, &["system:unauthenticated", "system:authenticated"]),
        ] {
            if !schemas.iter().any(|schema| schema.name == name) {
                schemas.push(SchemaConfig::of_groups(name, precedence, groups));
            }
        }
        schemas.sort_by(|one, other| {
            (one.precedence, &one.name).cmp(&(other.precedence, &other.name))
        });
        Self { schemas, levels }
    }
}

impl SchemaConfig {
    /// From the object.
    pub fn read(schema: &Document) -> Self {
        let rules = schema.list(&["spec", "rules"]).iter().map(FlowRule::read).collect();
        let text = |path: &[&str]| schema.str(path).unwrap_or_default();
        let distinguisher = match text(&["spec", "distinguisherMethod", "type"]) {
            "ByUser" => Distinguisher::User,
            "ByNamespace" => Distinguisher::Namespace,
            _ => Distinguisher::None,
        };
        Self {
            name: schema.name().to_owned(),
            uid: schema.uid().to_owned(),
            level: text(&["spec", "priorityLevelConfiguration", "name"]).to_owned(),
            precedence: schema
                .get(&["spec", "matchingPrecedence"])
                .and_then(Value::as_i64)
                .unwrap_or(1000),
            distinguisher,
            rules,
        }
    }

    /// All requests of groups, to the level of the same name.
    pub(super) fn of_groups(name: &str, precedence: i64, groups: &[&str]) -> Self {
        let all = || Names { is_all: true, names: Vec::new() };
        let subjects = groups.iter().map(|group| FlowSubject::Group((*group).to_owned())).collect();
        let resources = vec![ResourceRule {
            verbs: all(),
            groups: all(),
            resources: all(),
            namespaces: all(),
            cluster_scope: true,
        }];
        let paths = vec![PathRule { verbs: all(), paths: all() }];
        Self {
            name: name.to_owned(),
            uid: String::new(),
            level: name.to_owned(),
            precedence,
            distinguisher: Distinguisher::User,
            rules: Arc::new([FlowRule { subjects, resources, paths }]),
        }
    }
}

impl FlowRule {
    fn read(rule: &Value) -> Self {
        let resource = |rule: &Value| ResourceRule {
            verbs: Names::read(rule, "verbs"),
            groups: Names::read(rule, "apiGroups"),
            resources: Names::read(rule, "resources"),
            namespaces: Names::read(rule, "namespaces"),
            cluster_scope: rule.get("clusterScope").and_then(Value::as_bool).unwrap_or(false),
        };
        let path = |rule: &Value| PathRule {
            verbs: Names::read(rule, "verbs"),
            paths: Names::read(rule, "nonResourceURLs"),
        };
        Self {
            subjects: items(rule, "subjects").iter().filter_map(FlowSubject::read).collect(),
            resources: items(rule, "resourceRules").iter().map(resource).collect(),
            paths: items(rule, "nonResourceRules").iter().map(path).collect(),
        }
    }
}

impl FlowSubject {
    pub(super) fn read(subject: &Value) -> Option<Self> {
        let of =
            |part: &str, field: &str| Some(subject.get(part)?.get(field)?.as_str()?.to_owned());
        Some(match subject.get("kind")?.as_str()? {
            "User" => Self::User(of("user", "name")?),
            "Group" => Self::Group(of("group", "name")?),
            "ServiceAccount" => Self::ServiceAccount(
                of("serviceAccount", "namespace")?,
                of("serviceAccount", "name")?,
            ),
            _ => return None,
        })
    }
}

impl Names {
    fn read(rule: &Value, field: &str) -> Self {
        let names = items(rule, field).iter().filter_map(Value::as_str);
        let names: Vec<String> = names.map(str::to_owned).collect();
        Self { is_all: names == ["*"], names }
    }
}

impl LevelConfig {
    /// Lends nothing and borrows without limit.
    pub(super) fn new(name: &str, shares: u32, discipline: Discipline) -> Self {
        Self {
            name: name.to_owned(),
            uid: String::new(),
            shares,
            lendable_percent: 0,
            borrowing_percent: None,
            discipline,
        }
    }

    /// `None` if its parts do not fit together.
    pub fn read(level: &Document) -> Option<Self> {
        let spec = level.get(&["spec"])?;
        let (limited, exempt) = (part(spec, "limited"), part(spec, "exempt"));
        let is_exempt = level.name() == EXEMPT;
        let discipline = match (spec.get("type")?.as_str()?, limited, exempt) {
            ("Exempt", None, _) if is_exempt => Discipline::Exempt,
            ("Limited", Some(limited), None) if !is_exempt => Discipline::read(limited)?,
            _ => return None,
        };
        let own = limited.or(exempt).unwrap_or(&Value::Null);
        let shares = if is_exempt { 0 } else { 30 };
        Some(Self {
            uid: level.uid().to_owned(),
            shares: number(own, "nominalConcurrencyShares").unwrap_or(shares),
            lendable_percent: number(own, "lendablePercent").unwrap_or(0).min(100),
            borrowing_percent: number(own, "borrowingLimitPercent"),
            ..Self::new(level.name(), 0, discipline)
        })
    }
}

impl Discipline {
    fn read(limited: &Value) -> Option<Self> {
        let response = limited.get("limitResponse")?;
        match (response.get("type")?.as_str()?, part(response, "queuing")) {
            ("Reject", None) => Some(Self::Reject),
            ("Queue", Some(queuing)) => Some(Self::Queue {
                queues: number(queuing, "queues").unwrap_or(64).max(1),
                hand: u8::try_from(number(queuing, "handSize").unwrap_or(8)).ok()?,
                length: number(queuing, "queueLengthLimit").unwrap_or(50),
            }),
            _ => None,
        }
    }
}

fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Array::as_slice)
}

fn part<'a>(value: &'a Value, field: &str) -> Option<&'a Value> {
    value.get(field).filter(|part| !part.is_null())
}

fn number(value: &Value, field: &str) -> Option<u32> {
    value
        .get(field)
        .and_then(Value::as_i64)
        .map(|number| u32::try_from(number.max(0)).unwrap_or(u32::MAX))
}
