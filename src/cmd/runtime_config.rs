//! `--runtime-config`: optional API versions, which upstream serves only on request, too.

use anyhow::bail;
use ferrokube_resource::native::NativeKind;

/// The optional kinds that the settings enable: `group/version=true`, `api/beta=true`,
/// `api/all=true`. Later settings win, and those of a version win over `api/...`.
pub(crate) fn on_request(settings: &[String]) -> anyhow::Result<Vec<&'static NativeKind>> {
    let rows = ferrokube_resources::on_request();
    let mut chosen: Vec<(&str, bool)> = Vec::new();
    for setting in settings {
        let (name, value) = setting.split_once('=').unwrap_or((setting, "true"));
        let value = match value {
            "true" => true,
            "false" => false,
            other => bail!("--runtime-config {name}: {other:?} is neither true nor false"),
        };
        if !matches!(name, "api/all" | "api/beta" | "api/alpha" | "api/ga")
            && !rows.iter().any(|row| version(row) == name)
        {
            let known: Vec<String> = rows.iter().map(version).collect();
            bail!(
                "--runtime-config {name}: not an optional version; these are {}",
                known.join(", ")
            );
        }
        if !value && matches!(name, "api/all" | "api/ga") {
            bail!("--runtime-config {name}=false: versions served by default cannot be disabled");
        }
        chosen.push((name, value));
    }
    let last = |name: &str| {
        chosen.iter().rev().find(|(chosen, _)| *chosen == name).map(|(_, value)| *value)
    };
    let stage =
        |row: &NativeKind| if row.version.contains("beta") { "api/beta" } else { "api/alpha" };
    let is_on = |row: &&NativeKind| {
        last(&version(row))
            .or_else(|| last(stage(row)))
            .or_else(|| last("api/all"))
            .unwrap_or(false)
    };
    Ok(rows.iter().filter(is_on).collect())
}

fn version(row: &NativeKind) -> String {
    format!("{}/{}", row.group, row.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_served_on_request_only() {
        let plurals = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
            on_request(&settings).map(|rows| rows.iter().map(|row| row.plural).collect::<Vec<_>>())
        };
        let asked = "coordination.k8s.io/v1beta1";
        assert!(plurals(&[]).unwrap().is_empty());
        for settings in [&[asked][..], &["coordination.k8s.io/v1beta1=true"]] {
            assert_eq!(plurals(settings).unwrap(), ["leasecandidates"], "{settings:?}");
        }
        let (beta, alpha) = (["leasecandidates", "storageversionmigrations"], ["storageversions"]);
        for settings in [&["api/beta=true"][..], &["api/all=true", "api/alpha=false"]] {
            assert_eq!(plurals(settings).unwrap(), beta, "{settings:?}");
        }
        for settings in [&["api/alpha=true"][..], &["api/all=true", "api/beta=false"]] {
            assert_eq!(plurals(settings).unwrap(), alpha, "{settings:?}");
        }
        assert_eq!(plurals(&["api/all=true"]).unwrap().len(), 3);
        assert!(plurals(&["coordination.k8s.io/v1beta1=false"]).unwrap().is_empty());
        for setting in
            ["coordination.k8s.io/v1beta1=maybe", "v1=false", "apps/v1=true", "", "api/all=false"]
        {
            assert!(plurals(&[setting]).is_err(), "{setting}");
        }
    }
}
