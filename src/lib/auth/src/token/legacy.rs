//! Tokens in secrets of type `kubernetes.io/service-account-token`: they do not expire, and are
//! valid as long as their secret holds them.

use super::claims::{Claims, Reference};
use super::jwt;
use super::keys::TokenKeys;
use ferrokube_apimachinery::document::{Document, Value};

/// The issuer of such tokens, whoever signs them.
pub(super) const ISSUER: &str = "kubernetes/serviceaccount";

/// What such a token says.
#[derive(Clone, Copy, Debug)]
pub struct SecretToken<'a> {
    /// Of the account and the secret.
    pub namespace: &'a str,
    /// The account.
    pub account: &'a str,
    /// The account's uid.
    pub account_uid: &'a str,
    /// The secret that will hold it.
    pub secret: &'a str,
}

impl SecretToken<'_> {
    /// The signed token.
    pub fn sign(&self, keys: &TokenKeys) -> String {
        let mut claims = Document::new();
        claims.set(&["iss"], ISSUER);
        for (name, text) in [
            ("namespace", self.namespace),
            ("secret.name", self.secret),
            ("service-account.name", self.account),
            ("service-account.uid", self.account_uid),
        ] {
            claims.set(&[&claim(name)], text);
        }
        claims.set(&["sub"], format!("system:serviceaccount:{}:{}", self.namespace, self.account));
        jwt::sign(keys, &claims)
    }
}

/// Reads the claims; `None` when one is absent or they contradict each other.
pub(super) fn read(payload: &Document) -> Option<Claims> {
    let text = |name: &str| {
        payload
            .get(&[&claim(name)])
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let claims = Claims {
        issuer: ISSUER.to_owned(),
        expires: i64::MAX,
        namespace: text("namespace")?,
        account: Reference {
            name: text("service-account.name")?,
            uid: text("service-account.uid")?,
        },
        secret: Some(Reference { name: text("secret.name")?, uid: String::new() }),
        ..Claims::default()
    };
    (payload.str(&["sub"]) == Some(&claims.user_name())).then_some(claims)
}

fn claim(name: &str) -> String {
    format!("kubernetes.io/serviceaccount/{name}")
}
