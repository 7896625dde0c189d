//! Bootstrap tokens (`id.secret`) for joining nodes: secrets of type
//! `bootstrap.kubernetes.io/token` in `kube-system`.

use super::bearer::{TokenAuthenticator, TokenIdentity};
use super::{Identity, Unauthenticated, WallClock};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_apimachinery::{json, time};
use ferrokube_storage::{Prefix, Store};
use ring::digest;

/// Every bootstrap token's group.
const GROUP: &str = "system:bootstrappers";
/// Max extra groups of a token.
const MAX_GROUPS: usize = 100;

/// Authenticates bootstrap tokens against the store.
pub struct BootstrapTokens {
    store: Store,
    secrets: Prefix,
    clock: WallClock,
}

impl BootstrapTokens {
    /// Reads secrets from `store`.
    pub fn new(store: Store, clock: WallClock) -> Self {
        Self {
            store,
            secrets: Prefix::new("secrets").expect("a constant without bad segments"),
            clock,
        }
    }

    fn secret(&self, id: &str) -> Option<Document> {
        let key = self.secrets.key(Some("kube-system"), &format!("bootstrap-token-{id}")).ok()?;
        json::read(&self.store.get(&key)?.bytes).ok().map(|decoded| decoded.document)
    }

    /// `None` unless the secret is valid for this token now.
    fn identity(&self, secret: &Document, id: &str, given: &str) -> Option<Identity> {
        let text = |key: &str| data(secret, key);
        let is_same = hash(text("token-secret")?.as_bytes()) == hash(given.as_bytes());
        let is_for_this = secret.str(&["type"]) == Some("bootstrap.kubernetes.io/token")
            && !secret.is_terminating()
            && text("token-id").as_deref() == Some(id)
            && text("usage-bootstrap-authentication").as_deref() == Some("true");
        let is_current = match text("expiration").filter(|text| !text.is_empty()) {
            None => true,
            Some(text) => {
                time::parse_rfc3339(&text).is_some_and(|expires| (self.clock)() < expires)
            }
        };
        if !(is_same && is_for_this && is_current) {
            return None;
        }
        let groups = groups(text("auth-extra-groups").as_deref().unwrap_or_default())?;
        let name = format!("system:bootstrap:{id}");
        let user = UserInfo { name, groups, ..UserInfo::default() };
        Some(Identity::new(user, "bootstrap-token"))
    }
}

impl TokenAuthenticator for BootstrapTokens {
    fn authenticate_token(
        &self,
        token: &str,
        _audiences: &[String],
    ) -> Result<Option<TokenIdentity>, Unauthenticated> {
        let Some((id, secret)) = split(token) else {
            return Ok(None);
        };
        let identity = self
            .secret(id)
            .and_then(|stored| self.identity(&stored, id, secret))
            .ok_or(Unauthenticated)?;
        Ok(Some(TokenIdentity { identity, audiences: None }))
    }
}

/// `[a-z0-9]{6}.[a-z0-9]{16}`
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let is_plain =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
    (id.len() == 6 && secret.len() == 16 && is_plain(id) && is_plain(secret))
        .then_some((id, secret))
}

fn data(secret: &Document, key: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(secret.str(&["data", key])?).ok()?).ok()
}

/// Hashes are compared, so that timing reveals nothing about the secret.
fn hash(bytes: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, bytes).as_ref().to_vec()
}

/// The token's groups; `None` if an extra group does not start with `system:bootstrappers:`.
fn groups(extra: &str) -> Option<Vec<String>> {
    let mut groups = vec![GROUP.to_owned()];
    for group in extra.split(',').filter(|group| !group.is_empty()).take(MAX_GROUPS) {
        let rest = group.strip_prefix("system:bootstrappers:")?;
        let is_plain = rest.bytes().all(|byte| {
            byte.is_ascii_digit() || byte.is_ascii_lowercase() || byte == b':' || byte == b'-'
        });
        let ends_well = rest
            .bytes()
            .last()
            .is_some_and(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
        if rest.len() > 256 || !is_plain || !ends_well {
            return None;
        }
        if !groups.iter().any(|known| known == group) {
            groups.push(group.to_owned());
        }
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeClock, delete, put, store};
    use ferrokube_apimachinery::document::{Value, json};

    fn secret(data: &[(&str, &str)]) -> Value {
        let mut all = Document::from_value(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system", "uid": "u"},
        }))
        .expect("an object");
        let usual = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
        ];
        for (key, value) in usual.iter().chain(data) {
            all.set(&["data", key], STANDARD.encode(value));
        }
        all.into_value()
    }

    async fn ask(data: &[(&str, &str)], token: &str) -> Result<Option<UserInfo>, Unauthenticated> {
        let (store, clock) = (store(), FakeClock::new());
        put(&store, "secrets", secret(data)).await;
        let known = BootstrapTokens::new(store, clock.clock()).authenticate_token(token, &[])?;
        Ok(known.map(|known| UserInfo::clone(&known.identity.user)))
    }

    const TOKEN: &str = "abcdef.0123456789abcdef";

    #[tokio::test]
    async fn a_secret_authenticates_its_token() {
        let user =
            ask(&[("auth-extra-groups", "system:bootstrappers:a-1,system:bootstrappers:b")], TOKEN)
                .await
                .expect("valid")
                .expect("known");
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(
            user.groups,
            [
                "system:bootstrappers",
                "system:bootstrappers:a-1",
                "system:bootstrappers:b",
                "system:authenticated"
            ]
        );
        assert_eq!(ask(&[], "not-one").await, Ok(None));
        assert_eq!(ask(&[], "ABCDEF.0123456789abcdef").await, Ok(None));
    }

    #[tokio::test]
    async fn fault_51_bootstrap_tokens_that_are_refused() {
        assert_eq!(
            ask(&[], "abcdef.0123456789abcdeX".to_lowercase().as_str()).await,
            Err(Unauthenticated)
        );
        assert_eq!(ask(&[], "missin.0123456789abcdef").await, Err(Unauthenticated));
        for bad in [
            ("usage-bootstrap-authentication", "false"),
            ("token-id", "other1"),
            ("expiration", "2001-01-01T00:00:00Z"),
            ("expiration", "soon"),
            ("auth-extra-groups", "system:masters"),
            ("auth-extra-groups", "system:bootstrappers:"),
            ("auth-extra-groups", "system:bootstrappers:A"),
        ] {
            assert_eq!(ask(&[bad], TOKEN).await, Err(Unauthenticated), "{bad:?}");
        }
        assert!(ask(&[("expiration", "2040-01-01T00:00:00Z")], TOKEN).await.is_ok());
        let (store, clock) = (store(), FakeClock::new());
        let mut going = Document::from_value(secret(&[])).expect("an object");
        going.set(&["metadata", "deletionTimestamp"], "2040-01-01T00:00:00Z");
        put(&store, "secrets", going.into_value()).await;
        assert_eq!(
            BootstrapTokens::new(store, clock.clock()).authenticate_token(TOKEN, &[]),
            Err(Unauthenticated),
            "a secret that is being deleted"
        );
    }

    #[tokio::test]
    async fn deleting_the_secret_revokes_the_token() {
        let (store, clock) = (store(), FakeClock::new());
        put(&store, "secrets", secret(&[])).await;
        let tokens = BootstrapTokens::new(store.clone(), clock.clock());
        assert!(tokens.authenticate_token(TOKEN, &[]).is_ok());
        delete(&store, "secrets", "kube-system", "bootstrap-token-abcdef").await;
        assert!(tokens.authenticate_token(TOKEN, &[]).is_err());
    }
}
