//! `--runtime-config`: optional API versions, which kube-apiserver serves only on request, too.

use anyhow::bail;
use ferrokube_features::{COORDINATED_LEADER_ELECTION, FEATURE_API, Gates};
use ferrokube_resource::Bundle;
use ferrokube_resource::native::NativeKind;

/// Set by its gate.
const FEATURES: &str = "features.k8s.io/v1alpha1";

/// The bundles with the optional kinds that the settings enable: `group/version=true`,
/// `api/beta=true`, `api/all=true`. Later settings win, and those of a version win over `api/...`.
/// The Feature API is switched by its gate alone, and the gate of coordinated leader election
/// serves LeaseCandidates.
pub(crate) fn configure(
    bundles: Vec<Bundle>,
    settings: &[String],
    gates: &Gates,
) -> anyhow::Result<Vec<Bundle>> {
    let has_features = gates.enabled(&FEATURE_API);
    let has_elections = gates.enabled(&COORDINATED_LEADER_ELECTION);
    let rows: Vec<NativeKind> = bundles.iter().flat_map(Bundle::optional).copied().collect();
    let chosen = parse(&rows, settings)?;
    if let Some((name, value)) =
        chosen.iter().find(|(name, value)| *name == FEATURES && *value != has_features)
    {
        bail!("--runtime-config {name}={value}: use --feature-gates=FeatureAPI={value}");
    }
    let last = |name: &str| {
        chosen.iter().rev().find(|(chosen, _)| *chosen == name).map(|(_, value)| *value)
    };
    let stage =
        |row: &NativeKind| if row.version.contains("beta") { "api/beta" } else { "api/alpha" };
    let is_on = |row: &NativeKind| {
        if version(row) == FEATURES {
            return has_features;
        }
        // Without candidates there is nothing to elect.
        let is_needed = has_elections && row.plural == "leasecandidates";
        last(&version(row))
            .or(is_needed.then_some(true))
            .or_else(|| last(stage(row)))
            .or_else(|| last("api/all"))
            .unwrap_or(false)
    };
    let configure = |bundle: Bundle| {
        let on = bundle.optional().filter(|row| is_on(row));
        let names: Vec<String> = on.map(|row| format!("{}.{}", row.plural, row.group)).collect();
        bundle.with(names.iter().map(String::as_str))
    };
    Ok(bundles.into_iter().map(configure).collect())
}

/// Settings by name, in order.
fn parse<'a>(rows: &[NativeKind], settings: &'a [String]) -> anyhow::Result<Vec<(&'a str, bool)>> {
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
    Ok(chosen)
}

fn version(row: &NativeKind) -> String {
    format!("{}/{}", row.group, row.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_features::KubernetesVersion;

    #[test]
    fn versions_are_served_on_request_only() {
        let plurals_with = |gates: &str, settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
            let gates = Gates::new(KubernetesVersion::CURRENT, &gates.parse().unwrap()).unwrap().0;
            let bundles = configure(vec![ferrokube_resources::bundle()], &settings, &gates)?;
            let optional: Vec<&str> = bundles[0].optional().map(|row| row.plural).collect();
            let chosen = bundles[0].chosen().map(|row| row.plural);
            anyhow::Ok(chosen.filter(|plural| optional.contains(plural)).collect::<Vec<_>>())
        };
        let plurals = |settings: &[&str]| plurals_with("", settings);
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
        assert_eq!(plurals_with("FeatureAPI=true", &["api/alpha=false"]).unwrap(), ["features"]);
        let coordinated = "CoordinatedLeaderElection=true";
        assert_eq!(plurals_with(coordinated, &[]).unwrap(), ["leasecandidates"]);
        assert_eq!(plurals_with(coordinated, &["api/beta=true"]).unwrap(), beta);
        let without = ["coordination.k8s.io/v1beta1=false"];
        assert!(plurals_with(coordinated, &without).unwrap().is_empty());
        assert!(plurals_with("FeatureAPI=true", &["features.k8s.io/v1alpha1=false"]).is_err());
        assert!(plurals(&["features.k8s.io/v1alpha1"]).is_err());
        assert!(plurals(&["coordination.k8s.io/v1beta1=false"]).unwrap().is_empty());
        for setting in
            ["coordination.k8s.io/v1beta1=maybe", "v1=false", "apps/v1=true", "", "api/all=false"]
        {
            assert!(plurals(&[setting]).is_err(), "{setting}");
        }
    }
}
