//! Users and rights from elsewhere: a caller with the token `guest-NAME` is a guest, and may read
//! toys.

use ferrokube_server::apimachinery::user::UserInfo;
use ferrokube_server::auth::authenticate::{TokenAuthenticator, TokenIdentity};
use ferrokube_server::auth::{Access, Authorizer, Decision, Identity, Unauthenticated};

const GROUP: &str = "guests";

/// Authenticates and authorizes guests.
pub struct Guests;

impl TokenAuthenticator for Guests {
    fn authenticate_token(
        &self,
        token: &str,
        _audiences: &[String],
    ) -> Result<Option<TokenIdentity>, Unauthenticated> {
        let Some(name) = token.strip_prefix("guest-") else { return Ok(None) };
        if name.is_empty() {
            return Err(Unauthenticated);
        }
        let user = UserInfo {
            name: format!("guest:{name}"),
            groups: vec![GROUP.to_owned()],
            ..UserInfo::default()
        };
        let identity = Identity::new(user, "guest");
        Ok(Some(TokenIdentity { identity, audiences: None }))
    }
}

impl Authorizer for Guests {
    fn authorize(&self, access: &Access<'_>) -> Decision {
        let is_guest = access.user.groups.iter().any(|group| group == GROUP);
        let reads = matches!(access.verb, "get" | "list" | "watch");
        let toys = |resource: &str| resource == "toys";
        match &access.resource {
            Some(of) if is_guest && reads && toys(of.resource) && of.subresource.is_empty() => {
                Decision::Allow("guests look at toys".to_owned())
            }
            // RBAC decides.
            _ => Decision::NoOpinion(String::new()),
        }
    }
}
