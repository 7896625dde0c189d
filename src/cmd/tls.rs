//! TLS versions and cipher suites, with kube-apiserver's flags and names.

use clap::Args;
use ferrokube_serve::TlsPolicy;

#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsFlags {
    /// Minimum TLS version: VersionTLS12 or VersionTLS13
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS12", value_parser = minimum)]
    tls_min_version: MinTlsVersion,
    /// TLS 1.2 cipher suites by their Go names, such as TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
    /// those of TLS 1.3 are fixed [default: all safe ones]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = suite)]
    tls_cipher_suites: Vec<CipherSuiteName>,
}

/// Minimum TLS version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MinTlsVersion {
    Tls12,
    Tls13,
}

/// Name of a supported cipher suite.
#[derive(Clone, Debug)]
struct CipherSuiteName(String);

impl TlsFlags {
    pub(crate) fn policy(&self) -> TlsPolicy {
        let suites =
            self.tls_cipher_suites.iter().filter_map(|suite| TlsPolicy::suite(&suite.0)).collect();
        TlsPolicy { only_tls13: self.tls_min_version == MinTlsVersion::Tls13, suites }
    }
}

fn minimum(text: &str) -> Result<MinTlsVersion, String> {
    match text {
        "VersionTLS12" => Ok(MinTlsVersion::Tls12),
        "VersionTLS13" => Ok(MinTlsVersion::Tls13),
        "VersionTLS10" | "VersionTLS11" => {
            Err("not safe and not supported; use VersionTLS12 or VersionTLS13".to_owned())
        }
        _ => Err(format!("unknown tls version {text:?}")),
    }
}

fn suite(text: &str) -> Result<CipherSuiteName, String> {
    let text = text.trim();
    // kube-apiserver accepts these two without the hash, too.
    let full = if text.ends_with("_WITH_CHACHA20_POLY1305") {
        format!("{text}_SHA256")
    } else {
        text.to_owned()
    };
    match TlsPolicy::suite(&full) {
        Some(_) => Ok(CipherSuiteName(full)),
        None => Err(format!(
            "Cipher suite {text} not supported or doesn't exist; there are {}",
            TlsPolicy::suite_names().join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct TlsCli {
        #[command(flatten)]
        tls: TlsFlags,
    }

    fn policy(flags: &[&str]) -> Result<TlsPolicy, String> {
        TlsCli::try_parse_from([&["x"], flags].concat())
            .map(|line| line.tls.policy())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn versions_and_suites_have_the_names_of_kube_apiserver() {
        let default = policy(&[]).unwrap();
        assert!(!default.only_tls13 && default.suites.is_empty());
        assert!(policy(&["--tls-min-version=VersionTLS13"]).unwrap().only_tls13);
        for (version, text) in
            [("VersionTLS11", "not safe"), ("1.2", "unknown tls version \"1.2\"")]
        {
            let error = policy(&["--tls-min-version", version]).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        let names = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256";
        assert_eq!(policy(&["--tls-cipher-suites", names]).unwrap().suites.len(), 3);
        let error = policy(&["--tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA"]).unwrap_err();
        assert!(error.contains("Cipher suite TLS_RSA_WITH_AES_128_CBC_SHA not supported or doesn't exist; there are TLS_AES_256_GCM_SHA384, "), "{error}");
    }
}
