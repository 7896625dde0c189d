//! Flags of admission.

use anyhow::ensure;
use clap::Args;
use clap::builder::PossibleValuesParser;
use ferrokube_admission::{Availability, EVENT_RATE_LIMIT, PLUGINS, Plugin};
use std::path::PathBuf;

/// Names that flags may enable.
fn offered() -> impl Iterator<Item = &'static str> {
    PLUGINS.iter().filter(|plugin| plugin.is_offered()).map(|plugin| plugin.name)
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Admission")]
pub(crate) struct AdmissionFlags {
    /// AdmissionConfiguration (apiserver.config.k8s.io/v1): for MutatingAdmissionWebhook and
    /// ValidatingAdmissionWebhook a kubeconfig whose users are credentials for webhooks, by host
    /// or NAME.NAMESPACE.svc
    #[arg(long = "admission-control-config-file", value_name = "FILE")]
    pub(crate) config_file: Option<PathBuf>,
    /// Admission plug-ins in addition to the default ones: EventRateLimit, which needs a section in
    /// --admission-control-config-file. The default ones may be named, too
    #[arg(long = "enable-admission-plugins", value_name = "NAME,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(offered()), hide_possible_values = true)]
    pub(crate) enable: Vec<String>,
    /// Admission plug-ins to disable; names of kube-apiserver's plug-ins that this server lacks are
    /// accepted
    #[arg(long = "disable-admission-plugins", value_name = "NAME,...", value_delimiter = ',', value_parser = plugin)]
    pub(crate) disable: Vec<String>,
}

impl AdmissionFlags {
    /// Whether EventRateLimit is on.
    pub(crate) fn limits_events(&self) -> bool {
        self.enable.iter().any(|name| name == EVENT_RATE_LIMIT)
    }

    /// Steps to leave out that are on by default.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = &str> {
        self.disable
            .iter()
            .map(String::as_str)
            .filter(|name| offered().any(|known| known == *name) && *name != EVENT_RATE_LIMIT)
    }

    /// Rejects plug-ins that are both enabled and disabled, with kube-apiserver's message.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let both: Vec<&str> = self
            .enable
            .iter()
            .map(String::as_str)
            .filter(|name| self.disable.iter().any(|other| other == name))
            .collect();
        ensure!(
            both.is_empty(),
            "[{}] in enable-admission-plugins and disable-admission-plugins overlapped",
            both.join(" ")
        );
        Ok(())
    }
}

/// A name that may be left out; also an empty list, as test suites pass it.
fn plugin(text: &str) -> Result<String, String> {
    let is_known =
        |plugin: &Plugin| plugin.name == text && plugin.availability != Availability::Storage;
    if text.is_empty() || PLUGINS.iter().any(is_known) {
        Ok(text.to_owned())
    } else {
        Err(format!("admission-control plugin {text:?} is unknown"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct AdmissionCli {
        #[command(flatten)]
        admission: AdmissionFlags,
    }

    fn parse(flags: &[&str]) -> Result<AdmissionFlags, String> {
        AdmissionCli::try_parse_from([&["x"], flags].concat())
            .map(|line| line.admission)
            .map_err(|error| error.to_string())
    }

    /// Part of kube-apiserver's storage, hence no plug-ins.
    #[test]
    fn steps_of_the_storage_cannot_be_named() {
        for flag in ["--disable-admission-plugins", "--enable-admission-plugins"] {
            for name in ["RBACEscalation", "PolicyReaders"] {
                parse(&[&format!("{flag}={name}")]).expect_err("no plug-in");
            }
        }
        parse(&["--enable-admission-plugins=PodSecurity"]).expect_err("absent");
    }

    #[test]
    fn plug_ins_can_be_left_out() {
        let flags = parse(&[
            "--disable-admission-plugins=ServiceAccount,ResourceQuota",
            "--disable-admission-plugins=EventRateLimit",
        ])
        .expect("known names");
        flags.check().expect("no overlap");
        assert_eq!(flags.left_out().collect::<Vec<_>>(), ["ResourceQuota"]);
        assert!(!flags.limits_events());
        let none = parse(&["--disable-admission-plugins="]).expect("an empty list");
        assert_eq!(none.left_out().count(), 0);
        let error = parse(&["--disable-admission-plugins=Resourcequota"]).expect_err("a typo");
        assert!(error.contains("\"Resourcequota\" is unknown"), "{error}");
        let both = parse(&[
            "--enable-admission-plugins=ResourceQuota",
            "--disable-admission-plugins=ResourceQuota",
        ]);
        let error = both.expect("known names").check().expect_err("overlap").to_string();
        assert_eq!(
            error,
            "[ResourceQuota] in enable-admission-plugins and disable-admission-plugins overlapped"
        );
    }
}
