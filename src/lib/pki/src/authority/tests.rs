//! Tests of the authorities and of what they issue.

use super::*;
use crate::files::FileError;
use std::os::unix::fs::PermissionsExt;

fn open(directory: &tempfile::TempDir) -> Result<Pki, PkiError> {
    Pki::open(&directory.path().join("pki"))
}

#[test]
fn the_ca_and_the_token_keys_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(&directory).unwrap();
    let second = open(&directory).unwrap();
    assert_eq!(first.ca_pem(), second.ca_pem());
    assert_eq!(first.token_keys().private_pem, second.token_keys().private_pem);
    assert!(first.token_keys().public_pem.contains("PUBLIC KEY"));
    let mode = |name: &str| {
        std::fs::metadata(directory.path().join("pki").join(name)).unwrap().permissions().mode()
            & 0o777
    };
    assert_eq!([mode("ca.key"), mode("sa.key"), mode("ca.crt")], [0o600, 0o600, 0o644]);
}

#[test]
fn a_certificate_carries_its_names_and_subject() {
    let directory = tempfile::tempdir().unwrap();
    let pki = open(&directory).unwrap();
    let names = serving_names(
        "192.0.2.7".parse().unwrap(),
        &["api.example.com".into(), "localhost".into()],
    );
    let pair = pki.serving(&names).unwrap();
    let (_, block) = x509_parser::pem::parse_x509_pem(pair.chain_pem.as_bytes()).unwrap();
    let certificate = block.parse_x509().unwrap();
    let sans = format!(
        "{:?}",
        certificate.subject_alternative_name().unwrap().unwrap().value.general_names
    );
    for name in
        ["localhost", "kubernetes.default.svc.cluster.local", "api.example.com", "c0, 00, 02, 07"]
    {
        let decimal = if name.starts_with("c0") { "192, 0, 2, 7" } else { name };
        assert!(
            sans.contains(name) || sans.contains(decimal) || sans.contains("c0:00:02:07"),
            "{name} in {sans}"
        );
    }
    assert!(matches!(pki.serving(&["\u{e9}".into()]), Err(PkiError::Name { .. })));
    let client = pki.client(&ADMIN, ADMIN_LIFETIME).unwrap();
    let (_, block) = x509_parser::pem::parse_x509_pem(client.chain_pem.as_bytes()).unwrap();
    assert_eq!(
        block.parse_x509().unwrap().subject().to_string(),
        "O=system:masters, CN=kubernetes-admin"
    );
    assert!(!format!("{client:?} {:?}", pki.token_keys()).contains("PRIVATE KEY"));
}

#[test]
fn keys_that_others_can_read_and_missing_keys_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    open(&directory).unwrap();
    let key = directory.path().join("pki/ca.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(open(&directory), Err(PkiError::File(FileError::Open { mode: 0o640, .. }))));
    std::fs::remove_file(&key).unwrap();
    assert!(matches!(open(&directory), Err(PkiError::Missing { .. })));
    std::fs::write(&key, "nonsense").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(open(&directory), Err(PkiError::Unusable { .. })));
}

#[test]
fn a_crash_before_the_certificate_was_written_starts_over() {
    let directory = tempfile::tempdir().unwrap();
    open(&directory).unwrap();
    std::fs::remove_file(directory.path().join("pki/ca.crt")).unwrap();
    open(&directory).unwrap();
}

#[test]
fn servers_and_clients_have_separate_cas_and_old_directories_get_the_second() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(&directory).unwrap();
    assert_ne!(first.ca_pem(), first.client_ca_pem());
    let file = |name: &str| directory.path().join("pki").join(name);
    let mode = |name: &str| std::fs::metadata(file(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("client-ca.key"), mode("client-ca.crt")], [0o600, 0o644]);
    assert_eq!(open(&directory).unwrap().client_ca_pem(), first.client_ca_pem());
    // A directory as version 1 left it.
    std::fs::remove_file(file("client-ca.crt")).unwrap();
    std::fs::remove_file(file("client-ca.key")).unwrap();
    let second = open(&directory).unwrap();
    assert_eq!(
        (second.ca_pem(), &second.token_keys().public_pem),
        (first.ca_pem(), &first.token_keys().public_pem)
    );
    assert_ne!(second.client_ca_pem(), first.client_ca_pem());
    assert_eq!(open(&directory).unwrap().client_ca_pem(), second.client_ca_pem());
    std::fs::remove_file(file("client-ca.key")).unwrap();
    assert!(matches!(open(&directory), Err(PkiError::Missing { .. })));
}

#[test]
fn fault_14_a_clock_behind_the_ca_is_not_an_expired_ca() {
    let now = SystemTime::now();
    let (authority, _) = SERVING_CA.make(now).unwrap();
    let at = |now| check_validity(&authority.pem, Path::new("ca.crt"), now);
    at(now).unwrap();
    assert!(matches!(at(now + CA_LIFETIME * 2), Err(PkiError::Expired { .. })));
    let error = at(now - CA_LIFETIME).unwrap_err();
    assert!(error.to_string().starts_with("the CA certificate ca.crt is not yet valid: the clock of this machine is behind it (it says "), "{error}");
}
