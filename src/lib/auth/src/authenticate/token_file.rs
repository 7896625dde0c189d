//! Static tokens from a CSV file: `token,user,uid,"group1,group2"`.

use super::bearer::{TokenAuthenticator, TokenIdentity};
use super::{Identity, Unauthenticated};
use arc_swap::ArcSwap;
use ferrokube_apimachinery::user::UserInfo;
use ring::digest;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Largest token file.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Why a token file is refused. Names the line, never its content.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// Larger than 16 MiB or not UTF-8.
    #[error("the token file is larger than 16 MiB or not UTF-8 text")]
    Unreadable,
    /// A row with missing columns, an empty token or user, or a stray quote.
    #[error("line {line} of the token file: want token,user,uid and optionally \"group1,group2\"")]
    Row {
        /// 1-based.
        line: usize,
    },
}

/// Authenticates static tokens. Looks tokens up by hash, so that timing reveals nothing about them.
pub struct TokenFile(ArcSwap<TokenTable>);

struct TokenTable {
    /// SHA-256 of the file.
    hash: [u8; 32],
    /// By SHA-256 of the token.
    users: HashMap<[u8; 32], UserInfo>,
}

impl TokenFile {
    /// Parses the file. For a repeated token, the last row wins and a warning is logged.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub fn parse(csv: &[u8]) -> Result<Self, TokenFileError> {
        Ok(Self(ArcSwap::from_pointee(read(csv)?)))
    }

    /// Replaces all tokens. Returns whether the file changed.
    ///
    /// # Errors
    /// As [`Self::parse`]; the old tokens stay in use.
    pub fn replace(&self, csv: &[u8]) -> Result<bool, TokenFileError> {
        if self.0.load().hash == hash(csv) {
            return Ok(false);
        }
        self.0.store(Arc::new(read(csv)?));
        Ok(true)
    }
}

fn read(csv: &[u8]) -> Result<TokenTable, TokenFileError> {
    if csv.len() > MAX_BYTES {
        return Err(TokenFileError::Unreadable);
    }
    let text = std::str::from_utf8(csv).map_err(|_| TokenFileError::Unreadable)?;
    let mut users = HashMap::new();
    for (index, row) in text.lines().enumerate() {
        if row.trim().is_empty() || row.starts_with('#') {
            continue;
        }
        let line = index + 1;
        let (token, user) = parse_row(row).ok_or(TokenFileError::Row { line })?;
        if users.insert(hash(token.as_bytes()), user).is_some() {
            tracing::warn!(line, "repeated token in the token file, the last row wins");
        }
    }
    Ok(TokenTable { hash: hash(csv), users })
}

impl std::fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenFile").field("users", &self.0.load().users.len()).finish()
    }
}

impl TokenAuthenticator for TokenFile {
    fn authenticate_token(
        &self,
        token: &str,
        _audiences: &[String],
    ) -> Result<Option<TokenIdentity>, Unauthenticated> {
        Ok(self.0.load().users.get(&hash(token.as_bytes())).map(|user| TokenIdentity {
            identity: Identity::new(user.clone(), "token-file"),
            audiences: None,
        }))
    }
}

fn hash(secret: &[u8]) -> [u8; 32] {
    digest::digest(&digest::SHA256, secret).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn parse_row(row: &str) -> Option<(String, UserInfo)> {
    let mut columns = columns(row)?.into_iter();
    let (token, name, uid) = (columns.next()?, columns.next()?, columns.next()?);
    if token.is_empty() || name.is_empty() {
        return None;
    }
    let groups = columns.next().unwrap_or_default();
    let groups = groups
        .split(',')
        .map(str::trim)
        .filter(|group| !group.is_empty())
        .map(str::to_owned)
        .collect();
    Some((token, UserInfo { name, uid, groups, extra: BTreeMap::new() }))
}

/// The columns of a CSV row (RFC 4180, without quoted line feeds); `None` with a stray or unclosed
/// quote.
fn columns(row: &str) -> Option<Vec<String>> {
    let mut columns = Vec::new();
    let mut rest = row.trim();
    loop {
        rest = rest.trim_start();
        let (column, tail) = if let Some(quoted) = rest.strip_prefix('"') {
            quoted_column(quoted)?
        } else {
            plain_column(rest)?
        };
        columns.push(column);
        match tail.trim_start().strip_prefix(',') {
            Some(next) => rest = next,
            None if tail.trim().is_empty() => return Some(columns),
            None => return None,
        }
    }
}

fn quoted_column(text: &str) -> Option<(String, &str)> {
    let mut column = String::new();
    let mut rest = text;
    loop {
        let (part, tail) = rest.split_once('"')?;
        column.push_str(part);
        let Some(next) = tail.strip_prefix('"') else {
            return Some((column, tail));
        };
        column.push('"');
        rest = next;
    }
}

fn plain_column(text: &str) -> Option<(String, &str)> {
    let end = text.find(',').unwrap_or(text.len());
    let column = text[..end].trim_end();
    (!column.contains('"')).then(|| (column.to_owned(), &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(file: &TokenFile, token: &str) -> Option<UserInfo> {
        let known = file.authenticate_token(token, &[]).expect("never refuses")?;
        Some(UserInfo::clone(&known.identity.user))
    }

    #[test]
    fn rows() {
        let file = TokenFile::parse(b"# comment\ntok-a,alice,u-alice\n\n\"tok\"\"b\",bob, u-bob,\"devs, ops\"\ntok-c,carol,u-c,one\n").expect("parse");
        assert_eq!(user(&file, "tok-a").expect("known").name, "alice");
        let all = "system:authenticated";
        assert_eq!(user(&file, "tok\"b").expect("known").groups, ["devs", "ops", all]);
        assert_eq!(user(&file, "tok-c").expect("known").groups, ["one", all]);
        assert_eq!(user(&file, "tok-d"), None);
        assert_eq!(user(&file, ""), None);
    }

    #[test]
    fn replacing_the_file_revokes_removed_tokens() {
        let file = TokenFile::parse(b"old,alice,u").expect("parse");
        assert!(file.replace(b"nonsense").is_err());
        assert!(user(&file, "old").is_some(), "an invalid file changes nothing");
        assert!(file.replace(b"new,bob,u").expect("parse"));
        assert!(!file.replace(b"new,bob,u").expect("parse"), "unchanged");
        assert_eq!(
            (user(&file, "old"), user(&file, "new").expect("known").name),
            (None, "bob".to_owned())
        );
    }

    #[test]
    fn fault_54_bad_rows_name_the_line_not_the_token() {
        for bad in [
            "canary-token",
            "canary-token,alice",
            ",alice,u",
            "canary-token,,u",
            "canary-token,alice,u,\"open",
            "can\"ary,alice,u",
        ] {
            let error = TokenFile::parse(format!("ok,a,b\n{bad}\n").as_bytes())
                .expect_err("refused")
                .to_string();
            assert!(error.contains("line 2") && !error.contains("canary"), "{error}");
        }
        let file = TokenFile::parse(b"canary-token,alice,u").expect("parse");
        assert!(!format!("{file:?}").contains("canary"));
    }
}
