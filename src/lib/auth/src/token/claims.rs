//! The claims of a service account token.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::user::UserInfo;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tolerated clock skew between servers, in seconds; as in kube-apiserver.
const LEEWAY: i64 = 60;
/// Max audiences of a token.
const MAX_AUDIENCES: usize = 100;

/// An object's name and uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) name: String,
    pub(super) uid: String,
}

/// Parsed claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    pub(super) issuer: String,
    pub(super) audiences: Vec<String>,
    /// Unix seconds.
    pub(super) issued: i64,
    pub(super) not_before: i64,
    pub(super) expires: i64,
    pub(super) id: String,
    pub(super) namespace: String,
    pub(super) account: Reference,
    pub(super) pod: Option<Reference>,
    pub(super) node: Option<Reference>,
    pub(super) secret: Option<Reference>,
}

impl Claims {
    /// Parses claims; `None` if required ones are missing, have the wrong type or contradict each
    /// other.
    pub(super) fn read(payload: &Document) -> Option<Self> {
        let private = |field: &str| payload.get(&["kubernetes.io", field]);
        let account = Reference::read(private("serviceaccount")?)?;
        let claims = Self {
            issuer: payload.str(&["iss"])?.to_owned(),
            audiences: audiences(payload.get(&["aud"])?)?,
            issued: payload.get(&["iat"]).map_or(Some(0), seconds)?,
            not_before: payload.get(&["nbf"]).map_or(Some(0), seconds)?,
            expires: seconds(payload.get(&["exp"])?)?,
            id: payload.str(&["jti"]).unwrap_or_default().to_owned(),
            namespace: payload.str(&["kubernetes.io", "namespace"])?.to_owned(),
            account,
            pod: optional(private("pod"))?,
            node: optional(private("node"))?,
            secret: optional(private("secret"))?,
        };
        (payload.str(&["sub"]) == Some(&claims.user_name()) && !claims.namespace.is_empty())
            .then_some(claims)
    }

    /// The JWT payload.
    pub(super) fn to_document(&self) -> Document {
        let mut payload = Document::new();
        payload.set(&["iss"], self.issuer.as_str());
        payload.set(&["sub"], self.user_name());
        payload.set(&["aud"], json!(self.audiences));
        payload.set(&["iat"], self.issued);
        payload.set(&["nbf"], self.not_before);
        payload.set(&["exp"], self.expires);
        payload.set(&["jti"], self.id.as_str());
        payload.set(&["kubernetes.io", "namespace"], self.namespace.as_str());
        payload.set(&["kubernetes.io", "serviceaccount"], self.account.to_value());
        for (field, reference) in
            [("pod", &self.pod), ("node", &self.node), ("secret", &self.secret)]
        {
            if let Some(reference) = reference {
                payload.set(&["kubernetes.io", field], reference.to_value());
            }
        }
        payload
    }

    pub(super) fn user_name(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.account.name)
    }

    /// Checks `nbf` and `exp`.
    pub(super) fn is_current(&self, now: SystemTime) -> bool {
        let now = unix(now);
        self.not_before <= now.saturating_add(LEEWAY) && now.saturating_sub(LEEWAY) < self.expires
    }

    /// The user that the token authenticates.
    pub(super) fn user(&self) -> UserInfo {
        let mut extra = BTreeMap::new();
        let mut set = |key: &str, value: String| {
            if !value.is_empty() {
                extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value]);
            }
        };
        if !self.id.is_empty() {
            set("credential-id", format!("JTI={}", self.id));
        }
        for (kind, reference) in [("pod", &self.pod), ("node", &self.node)] {
            if let Some(reference) = reference {
                set(&format!("{kind}-name"), reference.name.clone());
                set(&format!("{kind}-uid"), reference.uid.clone());
            }
        }
        let groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{}", self.namespace),
        ];
        UserInfo { name: self.user_name(), uid: self.account.uid.clone(), groups, extra }
    }
}

impl Reference {
    fn read(value: &Value) -> Option<Self> {
        let name = value.get("name")?.as_str()?;
        let uid = value.get("uid").map_or(Some(""), Value::as_str)?;
        (!name.is_empty()).then(|| Self { name: name.to_owned(), uid: uid.to_owned() })
    }

    fn to_value(&self) -> Value {
        if self.uid.is_empty() {
            json!({"name": self.name})
        } else {
            json!({"name": self.name, "uid": self.uid})
        }
    }
}

/// Outer `None`: malformed.
fn optional(value: Option<&Value>) -> Option<Option<Reference>> {
    match value {
        None | Some(Value::Null) => Some(None),
        Some(value) => Reference::read(value).map(Some),
    }
}

fn audiences(value: &Value) -> Option<Vec<String>> {
    let audiences: Vec<String> = match value {
        Value::String(one) => vec![one.to_string()],
        Value::Array(several) if several.len() <= MAX_AUDIENCES => {
            several.iter().map(|one| one.as_str().map(str::to_owned)).collect::<Option<_>>()?
        }
        _ => return None,
    };
    (!audiences.is_empty()).then_some(audiences)
}

/// A NumericDate, without its fraction.
fn seconds(value: &Value) -> Option<i64> {
    #[allow(clippy::cast_possible_truncation, reason = "the range is checked")]
    value
        .as_i64()
        .or_else(|| value.as_f64().filter(|float| float.abs() < 1e15).map(|float| float as i64))
}

pub(super) fn unix(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

pub(super) fn from_unix(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}
