//! EventRateLimit: bounds the rate of writes of Events, by token buckets per server, namespace,
//! user, or source and object. Opt-in.
//!
//! kube-apiserver's step, but writes through `events.k8s.io` count like those through the core
//! group. As there, the oldest bucket is evicted, and is full when it comes back.

use crate::config::{AdmissionConfig, AdmissionConfigError, AdmissionSection};
use crate::step::AdmissionStep;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::{Attributes, Effects, Operation};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use tokio::time::Instant;

/// Name of the step.
pub const EVENT_RATE_LIMIT: &str = "EventRateLimit";

const API_VERSION: &str = "eventratelimit.admission.k8s.io/v1alpha1";
const KIND: &str = "Configuration";
/// Buckets of a limit, if its configuration does not say.
const BUCKETS: usize = 4096;

/// Answers 429 to writes of Events beyond a limit. Buckets are in memory, and lost at a restart.
#[derive(Debug)]
pub struct EventRateLimit {
    limits: Vec<EventLimit>,
    hash: RandomState,
}

/// A limit, with a bucket for each key.
#[derive(Debug)]
struct EventLimit {
    by: LimitKey,
    /// Tokens per second.
    rate: f64,
    /// Tokens of a full bucket.
    burst: f64,
    max_buckets: usize,
    buckets: Mutex<Buckets>,
}

/// The property shared by writes in one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitKey {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

/// By hash of the key: keys are as long as clients like.
#[derive(Debug, Default)]
struct Buckets {
    all: HashMap<u64, TokenBucket>,
    /// Hashes by last use.
    order: BTreeMap<u64, u64>,
    uses: u64,
}

#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: f64,
    /// As of then.
    since: Instant,
    used: u64,
}

impl LimitKey {
    const ALL: [(&'static str, Self); 4] = [
        ("Server", Self::Server),
        ("Namespace", Self::Namespace),
        ("User", Self::User),
        ("SourceAndObject", Self::SourceAndObject),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, key)| *key == self).map_or("", |(name, _)| name)
    }

    fn of(self, attributes: &Attributes<'_>, event: &Document) -> String {
        match self {
            Self::Server => String::new(),
            Self::Namespace => attributes.target.namespace.clone().unwrap_or_default(),
            Self::User => attributes.context.user.name.clone(),
            Self::SourceAndObject => source_and_object(event),
        }
    }
}

/// Source and object of an event of either group.
fn source_and_object(event: &Document) -> String {
    let text = |part: [&str; 2], field: &str| {
        part.iter().find_map(|part| event.str(&[part, field])).unwrap_or_default().to_owned()
    };
    let source = ["component", "host"].map(|field| text(["source", "deprecatedSource"], field));
    let object = ["kind", "namespace", "name", "uid", "apiVersion"]
        .map(|field| text(["involvedObject", "regarding"], field));
    source.concat() + &object.concat()
}

impl EventRateLimit {
    /// As configured: without a section there are no limits, which is an error.
    ///
    /// # Errors
    /// [`AdmissionConfigError::Invalid`].
    pub fn of(config: &AdmissionConfig) -> Result<Self, AdmissionConfigError> {
        match config.section(EVENT_RATE_LIMIT) {
            Some(section) => Self::read(section),
            None => Err(AdmissionConfigError::Invalid {
                field: format!("{EVENT_RATE_LIMIT}: limits"),
                why: "must not be empty".to_owned(),
            }),
        }
    }

    /// From the step's section of `--admission-control-config-file`.
    ///
    /// # Errors
    /// [`AdmissionConfigError::Invalid`].
    pub fn read(section: &AdmissionSection) -> Result<Self, AdmissionConfigError> {
        section.expect(API_VERSION, KIND, &["limits"])?;
        let limits: Vec<EventLimit> = section
            .object
            .list(&["limits"])
            .iter()
            .enumerate()
            .map(|(index, limit)| {
                EventLimit::read(limit).map_err(|(field, why)| {
                    section.invalid(&format!("limits[{index}]{field}"), why)
                })
            })
            .collect::<Result<_, _>>()?;
        if limits.is_empty() {
            return Err(section.invalid("limits", "must not be empty"));
        }
        Ok(Self { limits, hash: RandomState::new() })
    }

    /// Takes a token for each limit, even if one has none.
    ///
    /// # Errors
    /// 429.
    fn take(
        &self,
        attributes: &Attributes<'_>,
        event: &Document,
        now: Instant,
    ) -> Result<(), Failure> {
        let mut reached: Vec<String> = Vec::new();
        for limit in &self.limits {
            let key = limit.by.of(attributes, event);
            if !limit.take(self.hash.hash_one(&key), now) {
                reached.push(format!("limit reached on type {} for key {key}", limit.by.name()));
            }
        }
        let message = match reached.as_slice() {
            [] => return Ok(()),
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Err(Failure::new(Reason::TooManyRequests, format!("Too many requests: {message}")))
    }
}

impl AdmissionStep for EventRateLimit {
    fn name(&self) -> &'static str {
        EVENT_RATE_LIMIT
    }

    fn mutates(&self) -> bool {
        false
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        let definition = &attributes.target.served.definition;
        let is_event =
            definition.kind == "Event" && matches!(&*definition.group, "" | "events.k8s.io");
        let is_write = matches!(attributes.operation, Operation::Create | Operation::Update);
        match object {
            Some(event) if is_event && is_write && !attributes.dry_run => {
                self.take(attributes, event, Instant::now())
            }
            _ => Ok(()),
        }
    }
}

impl EventLimit {
    /// The error is a field and what is wrong with it.
    fn read(limit: &Value) -> Result<Self, (String, String)> {
        let wrong = |field: &str, why: &str| (format!(".{field}"), why.to_owned());
        const FIELDS: [&str; 4] = ["type", "qps", "burst", "cacheSize"];
        let Some(fields) = limit.as_object() else {
            return Err((String::new(), "not an object".to_owned()));
        };
        if let Some(unknown) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            return Err(wrong(unknown, "unknown field"));
        }
        let number = |field: &str| match limit.get(field) {
            None | Some(Value::Null) => Ok(0),
            Some(number) => number
                .as_i64()
                .and_then(|number| i32::try_from(number).ok())
                .ok_or_else(|| wrong(field, "must be an integer of 32 bits")),
        };
        let positive = |field: &str| match number(field)? {
            number if number > 0 => Ok(f64::from(number)),
            _ => Err(wrong(field, "must be positive")),
        };
        let name = limit.get("type").and_then(Value::as_str).unwrap_or_default();
        let by = LimitKey::ALL.iter().find(|(known, _)| *known == name);
        let Some((_, by)) = by else {
            let names = LimitKey::ALL.map(|(name, _)| name).join(", ");
            return Err(wrong("type", &format!("must be one of {names}")));
        };
        let max_buckets = match usize::try_from(number("cacheSize")?) {
            Ok(0) => BUCKETS,
            Ok(size) => size,
            Err(_) if *by == LimitKey::Server => BUCKETS,
            Err(_) => return Err(wrong("cacheSize", "must not be negative")),
        };
        Ok(Self {
            by: *by,
            rate: positive("qps")?,
            burst: positive("burst")?,
            max_buckets,
            buckets: Mutex::default(),
        })
    }

    /// Whether the bucket had a token, which is gone now.
    fn take(&self, key: u64, now: Instant) -> bool {
        let mut buckets = self.buckets.lock();
        let Buckets { all, order, uses } = &mut *buckets;
        *uses += 1;
        let full = TokenBucket { tokens: self.burst, since: now, used: *uses };
        let bucket = all.entry(key).or_insert(full);
        order.remove(&bucket.used);
        bucket.used = *uses;
        order.insert(*uses, key);
        let seconds = now.saturating_duration_since(bucket.since).as_secs_f64();
        bucket.tokens = seconds.mul_add(self.rate, bucket.tokens).min(self.burst);
        bucket.since = bucket.since.max(now);
        let has_token = bucket.tokens >= 1.0;
        if has_token {
            bucket.tokens -= 1.0;
        }
        if all.len() > self.max_buckets
            && let Some((_, oldest)) = order.pop_first()
        {
            all.remove(&oldest);
        }
        has_token
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;
    use std::time::Duration;

    fn section(limits: Value) -> AdmissionSection {
        let object = json!({"apiVersion": API_VERSION, "kind": KIND, "limits": limits});
        AdmissionSection {
            name: EVENT_RATE_LIMIT.to_owned(),
            path: "file".to_owned(),
            object: Document::from_value(object).expect("an object"),
        }
    }

    fn limit(rate: i32, burst: i32, buckets: i32) -> EventLimit {
        let limit = json!({"type": "Namespace", "qps": rate, "burst": burst, "cacheSize": buckets});
        EventLimit::read(&limit).expect("valid")
    }

    #[test]
    fn a_bucket_is_refilled_up_to_its_burst() {
        let limit = limit(2, 3, 0);
        let start = Instant::now();
        let taken = |seconds: f64| {
            let now = start + Duration::from_secs_f64(seconds);
            (0..10).filter(|_| limit.take(1, now)).count()
        };
        assert_eq!([taken(0.0), taken(0.4), taken(1.0), taken(100.0)], [3, 0, 2, 3]);
        assert!(limit.take(2, start), "of another key");
    }

    #[test]
    fn the_bucket_used_longest_ago_is_evicted() {
        let limit = limit(1, 1, 2);
        let now = Instant::now();
        assert!([1, 2].map(|key| limit.take(key, now)).iter().all(|taken| *taken));
        assert!(!limit.take(1, now));
        assert!(limit.take(3, now), "instead of the second one");
        assert_eq!([1, 2].map(|key| limit.take(key, now)), [false, true]);
        let buckets = limit.buckets.lock();
        assert_eq!((buckets.all.len(), buckets.order.len()), (2, 2));
    }

    #[test]
    fn errors_name_the_field() {
        for (limits, want) in [
            (json!([]), "file.limits: must not be empty"),
            (json!([{"type": "Pod", "qps": 1, "burst": 1}]), "file.limits[0].type: must be one of"),
            (json!([{"type": "User", "burst": 1}]), "file.limits[0].qps: must be positive"),
            (json!([{"type": "User", "qps": 1, "burst": -1}]), "limits[0].burst: must be positive"),
            (
                json!([{"type": "User", "qps": 1, "burst": 1, "cacheSize": -1}]),
                "limits[0].cacheSize: must not be negative",
            ),
            (
                json!([{"type": "User", "qps": 1.5, "burst": 1}]),
                "limits[0].qps: must be an integer",
            ),
            (json!([{"kind": "User"}]), "limits[0].kind: unknown field"),
            (json!([1]), "limits[0]: not an object"),
        ] {
            let why = EventRateLimit::read(&section(limits)).expect_err("it is wrong").to_string();
            assert!(why.contains(want), "{why}");
        }
        let negative = json!([{"type": "Server", "qps": 1, "burst": 1, "cacheSize": -1}]);
        assert!(EventRateLimit::read(&section(negative)).is_ok(), "a server has one bucket");
    }
}
