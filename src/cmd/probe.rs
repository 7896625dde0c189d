//! `ferrokube probe`: asks a server of this machine for its health, for images without a shell.

use super::flags::duration;
use super::{process, server::report};
use anyhow::{anyhow, ensure};
use clap::Args;
use ferrokube_client::probe::{ProbeRequest, ProbeRequestError, probe};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct ProbeFlags {
    /// URL of a health check on a loopback address; its certificate is not verified
    #[arg(value_name = "URL", default_value = "https://127.0.0.1:6443/readyz", value_parser = target)]
    url: ProbeRequest,
    /// Time limit
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    timeout: Duration,
}

/// A URL with a loopback address: what listens there is on this machine, so no caller is deceived
/// by a certificate that is not verified.
fn target(text: &str) -> Result<ProbeRequest, String> {
    const FORM: &str = "must be like https://127.0.0.1:6443/readyz, with a loopback address";
    let url: http::Uri = text.parse().map_err(|_| FORM.to_owned())?;
    let is_tls = match url.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(FORM.to_owned()),
    };
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_loopback =
        host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    if !is_loopback {
        return Err(FORM.to_owned());
    }
    Ok(ProbeRequest {
        is_tls,
        host: host.to_owned(),
        port: url.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
        path: url.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        headers: Vec::new(),
    })
}

/// Exit code 0 if the response is 200, else 1.
pub(crate) fn run(flags: ProbeFlags) -> anyhow::Result<ExitCode> {
    process::block_on(async {
        let response = tokio::time::timeout(flags.timeout, probe(flags.url))
            .await
            .map_err(|_| anyhow!("no response within {:?}", flags.timeout))?;
        let response = response.map_err(in_our_words)?;
        let first = response.body.lines().next().unwrap_or_default();
        ensure!(response.status == 200, "not ready: HTTP {}: {first}", response.status);
        report(first);
        Ok(ExitCode::SUCCESS)
    })
}

/// The text of a failed connection is kubelet's, for events of pods.
fn in_our_words(error: ProbeRequestError) -> anyhow::Error {
    match error {
        ProbeRequestError::Connect { address, source } => {
            anyhow!("cannot connect to {address}: {source}")
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_asked() {
        let asked = target("https://[::1]:10257/healthz?verbose").unwrap();
        let expected = ProbeRequest {
            is_tls: true,
            host: "::1".to_owned(),
            port: 10257,
            path: "/healthz?verbose".to_owned(),
            headers: Vec::new(),
        };
        assert_eq!(asked, expected);
        assert_eq!(target("http://localhost").unwrap().path, "/");
        for url in
            ["https://10.0.0.1:6443/", "ftp://127.0.0.1/", "https://example.com/", "127.0.0.1", ""]
        {
            assert!(target(url).is_err(), "{url}");
        }
    }
}
