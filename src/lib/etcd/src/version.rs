//! Releases of etcd, and what can be expected of them.

/// Oldest supported version.
pub(crate) const OLDEST: EtcdVersion = EtcdVersion { major: 3, minor: 4, patch: 0 };

/// An etcd release, without suffix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EtcdVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

/// Missing parts are zero.
pub(crate) fn parse_version(text: &str) -> EtcdVersion {
    let mut numbers = text.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    EtcdVersion { major: next(), minor: next(), patch: next() }
}

/// Whether progress notifications follow the events that they cover (etcd#15220).
pub(crate) fn has_progress(version: EtcdVersion) -> bool {
    match version {
        EtcdVersion { major: 3, minor: 4, patch } => patch >= 31,
        EtcdVersion { major: 3, minor: 5, patch } => patch >= 13,
        EtcdVersion { major, minor, .. } => (major, minor) > (3, 5),
    }
}

/// Whether a release has the security fixes of July 2026: of watches that show other keys than
/// their user may read, and of connections without a handshake. There is none of 3.4.
pub(crate) fn has_fixes(version: EtcdVersion) -> bool {
    match version {
        EtcdVersion { major: 3, minor: 5, patch } => patch >= 33,
        EtcdVersion { major: 3, minor: 6, patch } => patch >= 14,
        EtcdVersion { major: 3, minor: 7, patch } => patch >= 1,
        EtcdVersion { major, minor, .. } => (major, minor) > (3, 7),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, is_new_enough, progresses) in [
            ("3.3.25", false, false),
            ("3.4.23", true, false),
            ("3.4.31", true, true),
            ("3.5.12", true, false),
            ("3.5.13", true, true),
            ("3.6.0-rc.1", true, true),
            ("4.0.0", true, true),
            ("", false, false),
        ] {
            let version = parse_version(text);
            assert_eq!(version >= OLDEST, is_new_enough, "{text}");
            assert_eq!(is_new_enough && has_progress(version), progresses, "{text}");
        }
    }

    #[test]
    fn releases_without_security_fixes() {
        for (text, is_fixed) in [
            ("3.4.45", false),
            ("3.5.32", false),
            ("3.5.33", true),
            ("3.6.13", false),
            ("3.6.14", true),
            ("3.7.0", false),
            ("3.7.1", true),
            ("3.8.0-alpha.0", true),
            ("4.0.0", true),
        ] {
            assert_eq!(has_fixes(parse_version(text)), is_fixed, "{text}");
        }
    }
}
