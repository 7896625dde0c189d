//! Flags for credentials and tokens.

use clap::{ArgAction, Args};
use std::path::PathBuf;
use std::time::Duration;

/// Credential flags.
#[derive(Debug, Args)]
#[command(next_help_heading = "Authentication")]
pub(crate) struct AuthFlags {
    /// Static tokens: lines of token,user,uid,"group,..."; readable by the owner only; reloaded on
    /// change
    #[arg(long, value_name = "FILE")]
    pub(crate) token_auth_file: Option<PathBuf>,
    /// Accept tokens from secrets of type bootstrap.kubernetes.io/token in kube-system
    #[arg(long)]
    pub(crate) enable_bootstrap_token_auth: bool,
    /// Maximum lifetime of service account tokens, at least 1h; longer requests are shortened with
    /// a warning; 0: 2^32 seconds
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = max_token_life)]
    pub(crate) service_account_max_token_expiration: Duration,
    /// Extend the lifetime of injected tokens; only false is supported
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set, value_parser = never)]
    pub(crate) service_account_extend_token_expiration: bool,
    /// Serve the issuer's keys (/openid/v1/jwks) without credentials, like the discovery document;
    /// else only to subjects of system:service-account-issuer-discovery
    #[arg(long)]
    pub(crate) public_issuer_discovery: bool,
}

/// As in kube-apiserver; no token outlives 2^32 seconds.
const MAX_LIFE: Duration = Duration::from_secs(1 << 32);

fn max_token_life(text: &str) -> Result<Duration, String> {
    let life = super::flags::duration(text)?;
    let is_some = Duration::from_secs(3600)..=MAX_LIFE;
    if life.is_zero() || is_some.contains(&life) {
        Ok(life)
    } else {
        Err("must be between 1 hour and 2^32 seconds".to_owned())
    }
}

fn never(text: &str) -> Result<bool, String> {
    if text == "false" { Ok(false) } else { Err("extended tokens are not supported".to_owned()) }
}

/// A token issuer: any text, but a valid URL if it looks like one.
pub(crate) fn issuer(text: &str) -> Result<String, String> {
    let is_url =
        !text.contains(':') || text.parse::<http::Uri>().is_ok_and(|url| url.scheme().is_some());
    if is_url { word(text) } else { Err("not a URL".to_owned()) }
}

/// Text without spaces or control characters.
pub(crate) fn word(text: &str) -> Result<String, String> {
    let is_word = !text.is_empty()
        && !text.contains(|letter: char| letter.is_control() || letter.is_whitespace());
    if is_word { Ok(text.to_owned()) } else { Err("must be a single word".to_owned()) }
}

/// A header name or prefix.
pub(crate) fn header(text: &str) -> Result<String, String> {
    text.parse::<http::HeaderName>()
        .map(|_| text.to_owned())
        .map_err(|_| "not a header name".to_owned())
}
