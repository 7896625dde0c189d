//! Image references: syntax, and the default tag.

/// An invalid image reference.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReferenceError {
    /// Syntax.
    #[error("couldn't parse image name {0:?}: invalid reference format")]
    Format(String),
    /// Upper-case letters in the repository.
    #[error(
        "couldn't parse image name {0:?}: invalid reference format: repository name must be lowercase"
    )]
    Uppercase(String),
    /// Length of the repository's name.
    #[error(
        "couldn't parse image name {0:?}: repository name must not be more than 255 characters"
    )]
    Long(String),
}

/// Max length of a repository name.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// The image's full reference: with `:latest` unless it has a tag or digest.
///
/// # Errors
/// [`ReferenceError`].
pub fn with_default_tag(image: &str) -> Result<String, ReferenceError> {
    let wrong = || ReferenceError::Format(image.to_owned());
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) || tag.is_some_and(|tag| !is_tag(tag)) {
        return Err(wrong());
    }
    let (host, path) = match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path),
        _ => ("", name),
    };
    if !is_path(path) {
        let lower = path.to_ascii_lowercase();
        let is_case = path != lower && is_path(&lower);
        return Err(if is_case { ReferenceError::Uppercase(image.to_owned()) } else { wrong() });
    }
    if !is_host(host) {
        return Err(wrong());
    }
    if name.len() > MAX_NAME {
        return Err(ReferenceError::Long(image.to_owned()));
    }
    Ok(match (tag, digest) {
        (None, None) => format!("{image}:latest"),
        _ => image.to_owned(),
    })
}

/// The image's name, without tag and digest.
pub(crate) fn without_tag(image: &str) -> &str {
    let rest = image.split_once('@').map_or(image, |(rest, _)| rest);
    match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => rest,
    }
}

fn is_host(host: &str) -> bool {
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (host, None),
    };
    let is_label = |letter: char| letter.is_ascii_alphanumeric() || ".-:[]".contains(letter);
    host.chars().all(is_label)
        && port.is_none_or(|port| !port.is_empty() && port.chars().all(|it| it.is_ascii_digit()))
}

/// Components of lower-case letters and digits, with separators inside only.
fn is_path(path: &str) -> bool {
    path.split('/').all(|component| {
        let is_inner = |letter: char| {
            letter.is_ascii_lowercase() || letter.is_ascii_digit() || "._-".contains(letter)
        };
        let is_end = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        component.starts_with(is_end)
            && component.ends_with(is_end)
            && component.chars().all(is_inner)
            && !component.contains("..")
            && !component.contains("___")
    })
}

fn is_tag(tag: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    tag.len() <= MAX_TAG
        && tag.starts_with(is_word)
        && tag.chars().all(|letter| is_word(letter) || ".-".contains(letter))
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && hex.len() >= 32
            && hex.chars().all(|letter| letter.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_added_where_none_is() {
        let check = |image: &str, full: &str| assert_eq!(with_default_tag(image).unwrap(), full);
        check("nginx", "nginx:latest");
        check("nginx:1", "nginx:1");
        check("localhost:5000/a/b", "localhost:5000/a/b:latest");
        check("localhost:5000/a/b:v1.2_3", "localhost:5000/a/b:v1.2_3");
        let digest = format!("r.io/a@sha256:{}", "0".repeat(64));
        check(&digest, &digest);
    }

    #[test]
    fn names_are_without_tag_and_digest() {
        for image in ["localhost:5000/a", "localhost:5000/a:v1", "localhost:5000/a:v1@sha256:0"] {
            assert_eq!(without_tag(image), "localhost:5000/a");
        }
    }

    #[test]
    fn wrong_names_are_refused() {
        for image in ["", ":v1", "a//b", "/a", "a:", "a b", "-a", "a@sha256:12", "a/../b", "a\n"] {
            assert_eq!(with_default_tag(image), Err(ReferenceError::Format(image.to_owned())));
        }
        let upper = with_default_tag("Nginx").unwrap_err().to_string();
        assert_eq!(
            upper,
            "couldn't parse image name \"Nginx\": invalid reference format: repository name must \
             be lowercase"
        );
        let long = "a".repeat(256);
        assert_eq!(with_default_tag(&long), Err(ReferenceError::Long(long)));
    }
}
