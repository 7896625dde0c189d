//! Flags about who is believed, and for how long.

use clap::{ArgAction, Args};
use std::path::PathBuf;
use std::time::Duration;

/// Credentials.
#[derive(Debug, Args)]
#[command(next_help_heading = "Authentication")]
pub(crate) struct AuthFlags {
    /// Static tokens: lines of token,user,uid,"group,..."; readable by its owner only; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) token_auth_file: Option<PathBuf>,
    /// Accept the tokens of secrets of type bootstrap.kubernetes.io/token in kube-system
    #[arg(long)]
    pub(crate) enable_bootstrap_token_auth: bool,
    /// Longest life of a service account token, from 1h on; requests for longer ones are shortened with a warning; 0: 2^32 seconds
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = max_token_life)]
    pub(crate) service_account_max_token_expiration: Duration,
    /// Tokens live as long as was asked for; false is the only value
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set, value_parser = never)]
    pub(crate) service_account_extend_token_expiration: bool,
    /// Serve the issuer's keys (/openid/v1/jwks) without credentials, as its discovery document; else to whom system:service-account-issuer-discovery is bound
    #[arg(long)]
    pub(crate) public_issuer_discovery: bool,
}

/// As upstream; no token outlives 2^32 seconds.
const MAX_LIFE: Duration = Duration::from_secs(1 << 32);

fn max_token_life(text: &str) -> Result<Duration, String> {
    let life = super::flags::duration(text)?;
    let is_some = Duration::from_secs(3600)..=MAX_LIFE;
    if life.is_zero() || is_some.contains(&life) { Ok(life) } else { Err("it must be between 1 hour and 2^32 seconds".to_owned()) }
}

fn never(text: &str) -> Result<bool, String> {
    if text == "false" { Ok(false) } else { Err("tokens are never extended here".to_owned()) }
}

/// An issuer of tokens: any text, and a URL if it looks like one.
pub(crate) fn issuer(text: &str) -> Result<String, String> {
    let is_url = !text.contains(':') || text.parse::<http::Uri>().is_ok_and(|url| url.scheme().is_some());
    if is_url { word(text) } else { Err("it is no URL".to_owned()) }
}

/// A name in a token.
pub(crate) fn word(text: &str) -> Result<String, String> {
    let is_word = !text.is_empty() && !text.contains(|letter: char| letter.is_control() || letter.is_whitespace());
    if is_word { Ok(text.to_owned()) } else { Err("it must be a word".to_owned()) }
}

/// The name of a header, or the beginning of one.
pub(crate) fn header(text: &str) -> Result<String, String> {
    text.parse::<http::HeaderName>().map(|_| text.to_owned()).map_err(|_| "it is no name of a header".to_owned())
}
