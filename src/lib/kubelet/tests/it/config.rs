//! The KubeletConfiguration file: I01, D7, D8, D9.

use ferrokube_images::CredentialVerification;
use ferrokube_kubelet::{KubeletConfig, KubeletConfigFile, KubeletSettings, NodeTaint};
use std::time::Duration;

fn file(fields: &str) -> String {
    format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}")
}

fn config(fields: &str) -> Result<KubeletConfig, String> {
    let parsed = KubeletConfigFile::parse(file(fields).as_bytes());
    let parsed = parsed.map_err(|error| error.to_string())?;
    parsed.settings.finish().map_err(|error| error.to_string())
}

fn warnings(fields: &str) -> Vec<String> {
    KubeletConfigFile::parse(file(fields).as_bytes()).expect("it decodes").warnings
}

#[test]
fn i01_d07_both_names_of_the_limit_are_read_and_must_agree() {
    let limit = |fields| config(fields).map(|config| config.pulls.max_parallel);
    assert_eq!(limit("maxParallelImagePulls: 3"), Ok(Some(3)));
    assert_eq!(limit("maxParallelImagePulling: 3"), Ok(Some(3)));
    assert_eq!(limit("maxParallelImagePulling: 3\nmaxParallelImagePulls: 3"), Ok(Some(3)));
    assert_eq!(
        limit("maxParallelImagePulling: 3\nmaxParallelImagePulls: 4"),
        Err("invalid configuration: maxParallelImagePulls 4 and its alias \
             maxParallelImagePulling 3 must not differ"
            .to_owned())
    );
}

#[test]
fn taints_are_read_and_checked() {
    let taints = |fields| config(fields).map(|config| config.register_with_taints);
    assert_eq!(taints(""), Ok(Vec::new()));
    let read = taints(
        "registerWithTaints: [{key: a, value: b, effect: NoSchedule}, \
         {key: c, value: null, effect: NoExecute}]",
    );
    let wanted = ["a=b:NoSchedule", "c:NoExecute"].map(|text| text.parse::<NodeTaint>().unwrap());
    assert_eq!(read, Ok(wanted.to_vec()));
    assert_eq!(
        taints("registerWithTaints: [{key: a, effect: Never}]"),
        Err("failed to decode: invalid taint: a=:Never".to_owned())
    );
}

#[test]
fn d09_whether_pulls_are_serialized_follows_from_the_limit_unless_set() {
    let serial = |fields| config(fields).map(|config| config.pulls.is_serial);
    assert_eq!(serial(""), Ok(true));
    assert_eq!(serial("maxParallelImagePulls: 0"), Ok(true));
    assert_eq!(serial("maxParallelImagePulls: 1"), Ok(true));
    assert_eq!(serial("maxParallelImagePulls: 2"), Ok(false));
    assert_eq!(serial("maxParallelImagePulls: 1\nserializeImagePulls: false"), Ok(false));
    assert_eq!(serial("maxParallelImagePulls: 1\nserializeImagePulls: true"), Ok(true));
    let why = "invalid configuration: maxParallelImagePulls cannot be larger than 1 unless \
               SerializeImagePulls (--serialize-image-pulls) is set to false";
    let contradiction = serial("maxParallelImagePulls: 2\nserializeImagePulls: true");
    assert_eq!(contradiction, Err(why.to_owned()));
}

#[test]
fn d08_zero_is_no_limit_and_negative_is_refused() {
    for fields in
        ["serializeImagePulls: false", "serializeImagePulls: false\nmaxParallelImagePulls: 0"]
    {
        let pulls = config(fields).unwrap().pulls;
        assert_eq!((pulls.is_serial, pulls.max_parallel.unwrap_or(0)), (false, 0));
    }
    assert_eq!(
        config("maxParallelImagePulls: -1\nregistryPullQPS: -2\nregistryBurst: -3").unwrap_err(),
        "[invalid configuration: maxParallelImagePulls -1 must be a positive number, invalid \
         configuration: registryBurst (--registry-burst) -3 must not be a negative number, \
         invalid configuration: registryPullQPS (--registry-qps) -2 must not be a negative number]"
    );
}

#[test]
fn defaults_are_kubelets_and_flags_are_over_the_file() {
    let defaults = config("").unwrap();
    assert_eq!((defaults.pulls.registry_qps, defaults.pulls.registry_burst), (5, 10));
    assert_eq!(defaults.runtime_request_timeout, Duration::from_secs(120));
    assert_eq!(defaults.file_check_frequency, Duration::from_secs(20));
    assert_eq!(config("registryPullQPS: 0").unwrap().pulls.registry_qps, 0);
    assert_eq!(config("registryBurst: 0").unwrap().pulls.registry_burst, 10);
    let time = |text: &str| config(&format!("runtimeRequestTimeout: {text}"));
    assert_eq!(time("1m30.5s").unwrap().runtime_request_timeout, Duration::from_millis(90_500));
    let below = KubeletConfigFile::parse(file("maxParallelImagePulls: 3").as_bytes()).unwrap();
    let flags = KubeletSettings { max_parallel_image_pulling: Some(7), ..Default::default() };
    let config = flags.over(below.settings).finish().unwrap();
    assert_eq!(config.pulls.max_parallel, Some(7));
}

#[test]
fn processes_of_a_pod_are_limited_unless_configured_otherwise() {
    let limit = |fields: &str| config(fields).unwrap();
    let given = |fields: &str| (limit(fields).pod_pids_limit, limit(fields).is_pids_limit_given);
    assert_eq!(given(""), (Some(4096), false));
    assert_eq!(given("podPidsLimit: 100"), (Some(100), true));
    for none in ["podPidsLimit: -1", "podPidsLimit: 0"] {
        assert_eq!(given(none), (None, true), "{none}");
    }
}

#[test]
fn images_whose_credentials_are_verified_are_named_by_a_policy() {
    let policy = |fields: &str| config(fields).map(|config| config.image_verification);
    let field = "imagePullCredentialsVerificationPolicy";
    assert_eq!(policy(""), Ok(CredentialVerification::PulledImages));
    assert_eq!(policy(&format!("{field}: AlwaysVerify")), Ok(CredentialVerification::Always));
    let list = "preloadedImagesVerificationAllowlist: [r.io/a]";
    let listed = policy(&format!("{field}: NeverVerifyAllowlistedImages\n{list}"));
    assert_eq!(listed, Ok(CredentialVerification::AllBut(vec!["r.io/a".to_owned()])));
    for (fields, words) in [
        (list.to_owned(), "is not \"NeverVerifyAllowlistedImages\""),
        (format!("{field}: Sometimes"), "option \"Sometimes\" specified for"),
    ] {
        let why = policy(&fields).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn unknown_and_repeated_fields_are_named_and_the_rest_is_used() {
    let text = "maxParallelImagePulls: 3\nmaxParalelImagePulls: 4\npodsPerCore: 30";
    assert_eq!(
        warnings(text),
        [
            "podsPerCore has no effect in this version",
            "Using lenient decoding as strict decoding failed: strict decoding error: unknown \
             field \"maxParalelImagePulls\"",
        ]
    );
    assert_eq!(config(text).unwrap().pulls.max_parallel, Some(3));
    let repeated = warnings("maxParallelImagePulls: 3\nmaxParallelImagePulls: 4").concat();
    assert!(repeated.contains("maxParallelImagePulls"), "{repeated}");
}

#[test]
fn wrong_types_and_kinds_are_refused() {
    let why = |fields| config(fields).unwrap_err();
    assert_eq!(
        why("maxParallelImagePulls: many"),
        "failed to decode: json: cannot unmarshal string into Go struct field \
         KubeletConfiguration.maxParallelImagePulls of type int32"
    );
    assert_eq!(
        why("serializeImagePulls: 1"),
        "failed to decode: json: cannot unmarshal number 1 into Go struct field \
         KubeletConfiguration.serializeImagePulls of type bool"
    );
    assert!(why("runtimeRequestTimeout: soon").contains("soon"));
    let other = KubeletConfigFile::parse(b"apiVersion: v1\nkind: Pod\n").unwrap_err().to_string();
    assert_eq!(other, "failed to decode: no kind \"Pod\" is registered for version \"v1\"");
    KubeletConfigFile::parse(b"{").unwrap_err();
    KubeletConfigFile::parse(b"").unwrap_err();
}

#[test]
fn rotation_of_logs_has_kubelets_defaults_and_bounds() {
    let rotation = |fields| config(fields).map(|config| config.log_rotation);
    let defaults = rotation("").unwrap();
    assert_eq!((defaults.max_bytes, defaults.max_files), (Some(10 << 20), 5));
    assert_eq!((defaults.workers, defaults.interval), (1, Duration::from_secs(10)));
    assert_eq!(rotation("containerLogMaxSize: 1Gi").unwrap().max_bytes, Some(1 << 30));
    assert_eq!(rotation("containerLogMaxSize: '-1'").unwrap().max_bytes, None, "not rotated");
    let why = rotation(
        "containerLogMaxFiles: 1\ncontainerLogMaxWorkers: -1\ncontainerLogMonitorInterval: 2s",
    );
    let why = why.unwrap_err();
    for part in ["containerLogMaxFiles 1 must be", "containerLogMaxWorkers must", "equal to 3s"] {
        assert!(why.contains(part), "{why}");
    }
    assert!(rotation("containerLogMaxSize: many").is_err());
}

#[test]
fn figures_of_images_and_evictions_have_kubelets_defaults_and_bounds() {
    let images = |fields| config(fields).map(|config| config.image_collection);
    let defaults = images("").unwrap();
    assert_eq!((defaults.high_percent, defaults.low_percent), (85, 80));
    assert_eq!((defaults.least_age, defaults.longest_unused), (Duration::from_secs(120), None));
    let why = images("imageGCHighThresholdPercent: 70\nimageMaximumGCAge: 1s").unwrap_err();
    for part in ["imageGCLowThresholdPercent 80 must be less than", "imageMaximumGCAge must be"] {
        assert!(why.contains(part), "{why}");
    }
    let eviction = |fields| config(fields).map(|config| config.eviction.thresholds.len());
    assert_eq!(eviction(""), Ok(5));
    assert_eq!(eviction("evictionHard: {memory.available: 1Gi}"), Ok(1), "no others");
    assert_eq!(eviction("evictionHard: {memory.available: 0%}"), Ok(0));
    let why = eviction("evictionHard: {memory.used: 1Gi}").unwrap_err();
    assert!(why.contains("unknown eviction signal memory.used"), "{why}");
    let merged = "evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true";
    assert_eq!(eviction(merged), Ok(5));
    let soft = "evictionSoft: {memory.available: 1Gi}";
    let why = eviction(soft).unwrap_err();
    let words = "grace period must be specified for the soft eviction threshold memory.available";
    assert!(why.contains(words), "{why}");
    let soft = format!("{soft}\nevictionSoftGracePeriod: {{memory.available: 1m30s}}");
    assert_eq!(eviction(&soft), Ok(6), "next to the hard defaults");
    for (fields, words) in [
        ("evictionSoftGracePeriod: {memory.used: 1m}", "unknown eviction signal memory.used"),
        ("evictionMinimumReclaim: {memory.used: 1Gi}", "unknown eviction signal memory.used"),
        ("evictionMinimumReclaim: {memory.available: '-1'}", "must be positive"),
        ("evictionMaxPodGracePeriod: -1", "evictionMaxPodGracePeriod -1 must not be negative"),
        ("evictionSoft: {memory.available: 1}", "must be a string"),
    ] {
        let why = eviction(fields).unwrap_err();
        assert!(why.contains(words), "{fields}: {why}");
    }
}
