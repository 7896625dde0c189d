//! Invalid command lines leave no trace: no data directory, no log.

use crate::FERROKUBE;
use crate::apiserver::openssl;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Files for flags, valid and invalid.
fn files(path: &Path) {
    for name in ["ca", "other"] {
        openssl(
            path,
            &format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.crt -days 1 -subj /CN={name}"
            ),
        );
    }
    openssl(path, "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:1024 -out rsa.key");
    let write = |name: &str, text: &str, mode: u32| {
        fs::write(path.join(name), text).unwrap();
        fs::set_permissions(path.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    for key in ["ca.key", "other.key", "rsa.key"] {
        fs::set_permissions(path.join(key), fs::Permissions::from_mode(0o600)).unwrap();
    }
    write("bad", "nonsense", 0o600);
    write("tokens.csv", "token-of-alice,alice,u\n", 0o600);
    write("open.csv", "token-of-alice,alice,u\n", 0o640);
    write(
        "policy.yaml",
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Everything}]\n",
        0o600,
    );
}

/// `{F}` stands for the files' directory; the error line must contain the words.
const SERVER: &[(&str, &str)] = &[
    ("--no-such-flag", "no-such-flag"),
    ("--secure-port=65536", "65536"),
    ("--bind-address=somewhere", "somewhere"),
    ("--bind-address=192.0.2.1", "not an address of this machine"),
    ("--tls-san=bad\u{e4}name", "--tls-san"),
    ("--tls-min-version=VersionTLS11", "not safe"),
    ("--tls-cipher-suites=TLS_NULL", "TLS_NULL"),
    ("--admin-certificate-lifetime=0s", "--admin-certificate-lifetime"),
    ("--storage=paper", "paper"),
    ("--profile=other", "other"),
    ("--runtime-config=apps/v1=true", "--runtime-config"),
    ("--feature-gates=LogTracking=perhaps", "perhaps"),
    ("--feature-gates=Nonsense", "Nonsense"),
    ("--log-level=a=b=c", "a=b=c"),
    ("--log-format=xml", "xml"),
    ("--log-file=/nowhere/at/all.log", "/nowhere/at"),
    ("--log-file={F}", "is a directory"),
    ("--audit-log-path=/nowhere/at/all.log", "/nowhere/at"),
    ("--audit-log-path={F}", "is a directory"),
    ("--audit-log-mode=maybe", "maybe"),
    ("--audit-log-maxage=-1", "--audit-log-maxage"),
    ("--audit-log-maxsize=much", "--audit-log-maxsize"),
    ("--audit-policy-file={F}/missing", "missing does not exist"),
    ("--audit-policy-file={F}/policy.yaml", "rules[0].level"),
    ("--tracing-config-file={F}/missing", "missing"),
    ("--tracing-config-file={F}/bad", "bad"),
    ("--token-auth-file={F}/missing", "missing does not exist"),
    ("--token-auth-file={F}/bad", "line 1"),
    ("--token-auth-file={F}/open.csv", "chmod go="),
    ("--admission-control-config-file={F}/missing", "missing does not exist"),
    ("--admission-control-config-file={F}/policy.yaml", "kind AdmissionConfiguration"),
    ("--enable-admission-plugins=EventRateLimit", "EventRateLimit: limits: must not be empty"),
    ("--enable-admission-plugins=LimitRanger", "LimitRanger"),
    ("--disable-admission-plugins=Nonsense", "\"Nonsense\" is unknown"),
    (
        "--enable-admission-plugins=ResourceQuota --disable-admission-plugins=ResourceQuota",
        "overlapped",
    ),
    ("--service-account-max-token-expiration=59m", "between 1 hour and 2^32 seconds"),
    ("--service-account-max-token-expiration=4294967297s", "between 1 hour and 2^32 seconds"),
    ("--service-account-max-token-expiration=long", "long"),
    ("--service-account-extend-token-expiration=true", "not supported"),
    ("--trace-ui-backend=http://traces.example/{trace_id}", "--trace-ui"),
    ("--trace-ui --trace-ui-backend=ftp://traces.example", "https://"),
    ("--max-connections=0", "--max-connections"),
    ("--max-requests-inflight=0", "--max-requests-inflight"),
    ("--service-address=nowhere", "--service-address"),
    ("--service-cluster-ip-range=10.0.0.0", "--service-cluster-ip-range"),
    ("--advertise-address=here", "--advertise-address"),
    ("--etcd-servers=127.0.0.1:1", "no http or https URL"),
    ("--etcd-servers=http://127.0.0.1:2379x", "'http://127.0.0.1:2379x' for '--etcd-servers"),
    ("--etcd-servers=http://a:1,http://127.0.0.1:65536", "65536' for '--etcd-servers"),
    ("--etcd-servers=http://127.0.0.1:1 --etcd-prefix=registry", "no prefix of keys"),
    ("--etcd-servers=https://127.0.0.1:1", "of its servers: set --etcd-cafile"),
    ("--etcd-servers=https://127.0.0.1:1 --etcd-cafile={F}/missing", "missing does not exist"),
    (
        "--etcd-servers=https://127.0.0.1:1 --etcd-cafile={F}/ca.crt --etcd-certfile={F}/ca.crt \
         --etcd-keyfile={F}/ca.crt",
        "chmod go=",
    ),
    ("--etcd-cafile={F}/ca.crt", "--etcd-servers"),
];

const APISERVER: &[(&str, &str)] = &[
    ("--tls-cert-file={F}/ca.crt", "--tls-private-key-file"),
    ("--tls-cert-file={F}/missing --tls-private-key-file={F}/ca.key", "missing does not exist"),
    ("--tls-cert-file={F}/ca.crt --tls-private-key-file={F}/other.key", "do not work together"),
    ("--tls-cert-file={F}/bad --tls-private-key-file={F}/ca.key", "no usable certificate"),
    ("--client-ca-file={F}/missing", "missing does not exist"),
    ("--client-ca-file={F}/bad", "no usable certificate"),
    ("--requestheader-client-ca-file={F}/bad", "no usable certificate"),
    ("--client-ca-file={F}/ca.crt --requestheader-client-ca-file={F}/ca.crt", "share a key"),
    ("--requestheader-allowed-names=proxy", "--requestheader-client-ca-file"),
    ("--requestheader-username-headers=a:b", "not a header name"),
    ("--requestheader-extra-headers-prefix=", "not a header name"),
    ("--service-account-issuer=", "must be a single word"),
    ("--service-account-issuer=http://[", "not a URL"),
    ("--api-audiences=one,,two", "must be a single word"),
    ("--service-account-key-file={F}/missing", "missing does not exist"),
    ("--service-account-key-file={F}/rsa.key", "service account key"),
    ("--service-account-signing-key-file={F}/bad", "service account key"),
    ("--service-account-signing-key-file={F}/ca.crt", "chmod go="),
    ("--proxy-client-cert-file={F}/ca.crt", "--proxy-client-key-file"),
    (
        "--proxy-client-cert-file={F}/ca.crt --proxy-client-key-file={F}/other.key",
        "front proxy certificate",
    ),
    ("--kubelet-client-certificate={F}/ca.crt", "--kubelet-client-key"),
    (
        "--kubelet-client-certificate={F}/ca.crt --kubelet-client-key={F}/other.key",
        "certificate for kubelets",
    ),
    ("--kubelet-certificate-authority={F}/missing", "missing does not exist"),
    ("--kubelet-certificate-authority={F}/bad", "no certificates"),
    ("--authorization-mode=AlwaysAllow", "AlwaysAllow"),
    ("--anonymous-auth=perhaps", "perhaps"),
];

const ALL_IN_ONE: &[(&str, &str)] = &[
    ("--controllers=nodeipam", "nodeipam"),
    ("--controllers=*,-nodeipam", "nodeipam"),
    ("--controllers=", "unknown controller"),
    ("--node-name=n", "--node"),
    ("--node --profile=generic", "--profile kubernetes"),
    ("--node --kubelet-config={F}/missing", "missing"),
];

fn run(role: &str, flags: &str, path: &Path) -> Output {
    let flags: Vec<String> =
        flags.split(' ').map(|flag| flag.replace("{F}", &path.display().to_string())).collect();
    Command::new(FERROKUBE).arg(role).args(flags).env_remove("RUST_LOG").output().unwrap()
}

#[test]
fn invalid_flags_are_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    files(path);
    let data = path.join("data");
    let both = ["all-in-one", "apiserver"]
        .into_iter()
        .flat_map(|role| SERVER.iter().map(move |row| (role, row)));
    let more = APISERVER
        .iter()
        .map(|row| ("apiserver", row))
        .chain(ALL_IN_ONE.iter().map(|row| ("all-in-one", row)));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port =
        format!("--bind-address=127.0.0.1 --secure-port={}", taken.local_addr().unwrap().port());
    let port = (port.as_str(), "in use by another process");
    let more = more.chain([("apiserver", &port), ("all-in-one", &port)]);
    for (role, (flags, words)) in both.chain(more) {
        // Its own port, so that a mistakenly accepted command line would start.
        let port = if flags.contains("--secure-port") { "" } else { "--secure-port=0 " };
        let output = run(role, &format!("{port}{flags} --data-dir={}", data.display()), path);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            matches!(output.status.code(), Some(1 | 2)) && said.contains(words),
            "{role} {flags}: {said}"
        );
        assert!(!said.contains("token-of-alice"), "{said}");
        assert!(!data.exists(), "{role} {flags}");
    }
}

#[test]
fn other_roles_check_before_they_open_their_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    files(path);
    fs::write(path.join("kubeconfig"), "apiVersion: v1\nkind: Config\n").unwrap();
    let manager = "--kubeconfig={F}/kubeconfig";
    let webhook = "--tls-cert-file={F}/ca.crt --tls-private-key-file={F}/ca.key";
    for (role, given, flags, words) in [
        ("controller-manager", manager, "--controllers=nodeipam", "nodeipam"),
        ("controller-manager", manager, "--leader-elect-renew-deadline=20s", "--leader-elect"),
        ("controller-manager", manager, "--root-ca-file={F}/missing", "missing"),
        (
            "controller-manager",
            manager,
            "--service-account-private-key-file={F}/bad",
            "service account key",
        ),
        ("controller-manager", "--kubeconfig={F}/missing", "--controllers=*", "missing"),
        ("trace-webhook", webhook, "--client-ca-file={F}/missing", "missing"),
        ("trace-webhook", webhook, "--client-ca-file={F}/bad", "no usable certificate"),
        ("trace-webhook", webhook, "--client-allowed-names=x", "--client-ca-file"),
        (
            "trace-webhook",
            "--tls-cert-file={F}/ca.crt --tls-private-key-file={F}/other.key",
            "--secure-port=0",
            "do not work together",
        ),
    ] {
        let output = run(role, &format!("{given} {flags} --log-file={{F}}/role.log"), path);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            matches!(output.status.code(), Some(1 | 2)) && said.contains(words),
            "{role} {flags}: {said}"
        );
        assert!(!path.join("role.log").exists(), "{role} {flags}");
    }
}
