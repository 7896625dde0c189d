//! Tokens in secrets of type `kubernetes.io/service-account-token`: valid without expiry while
//! their secret holds them.

use super::claims::{Claims, Reference};
use super::jwt;
use super::keys::TokenKeys;
use ferrokube_apimachinery::document::{Document, Value};

/// The issuer claim, the same for every signer.
pub(super) const ISSUER: &str = "kubernetes/serviceaccount";

/// The contents of such a token.
#[derive(Clone, Copy, Debug)]
pub struct SecretToken<'a> {
    /// Namespace of the account and the secret.
    pub namespace: &'a str,
    /// Service account name.
    pub account: &'a str,
    /// Service account uid.
    pub account_uid: &'a str,
    /// Name of the secret that will hold the token.
    pub secret: &'a str,
}

impl SecretToken<'_> {
    /// As a JWT without an expiration: it holds as long as its secret exists.
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

/// Parses the claims; `None` if one is missing or they contradict each other.
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
