//! Against certificates made here.

use std::path::PathBuf;

use rcgen::{CertificateParams, date_time_ymd};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::testing::{Authority, Pair, written};
use super::*;
use crate::reread::Contents;

fn server(cert: &str, key: &str, ca: Option<&str>) -> Result<ServerTls, TlsError> {
    let directory = tempfile::tempdir().unwrap();
    let at = |name, text: &str| written(directory.path(), name, text);
    let files = ServerFiles {
        cert: at("cert.pem", cert),
        key: at("key.pem", key),
        client_ca: ca.map(|ca| at("ca.pem", ca)),
    };
    ServerTls::new(&Contents::read(&files.paths()).unwrap())
}

fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
}

#[test]
fn what_is_wrong_with_a_pair_is_said_with_the_file_and_without_its_content() {
    let authority = Authority::new();
    let Pair { cert, key } = authority.pair(&["a.test"]);
    let other = authority.pair(&["a.test"]);
    let old = authority.pair_with(&["a.test"], expired);
    let young = authority.pair_with(&["a.test"], |params| {
        params.not_before = date_time_ymd(2101, 1, 1);
        params.not_after = date_time_ymd(2102, 1, 1);
    });
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----";
    let damaged = "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n";
    let short = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let table = [
        (&*cert, &*key, None, None),
        (&*cert, &*key, Some(&*authority.pem), None),
        ("", &*key, None, Some("cert.pem is empty")),
        (&*cert, " \n", None, Some("key.pem is empty")),
        ("hello", &*key, None, Some("cert.pem holds no certificate")),
        (&*key, &*cert, None, Some("cert.pem holds no certificate")),
        (&*cert, &*cert, None, Some("key.pem holds no private key")),
        (damaged, &*key, None, Some("cert.pem is damaged")),
        (short, &*key, None, Some("cert.pem holds a certificate that cannot be read")),
        (&*cert, no_key, None, Some("key.pem holds a private key that cannot be used")),
        (&*cert, encrypted, None, Some("key.pem holds a private key that is encrypted")),
        (&*cert, &*other.key, None, Some("key.pem is not that of the certificate in")),
        (&*old.cert, &*old.key, None, Some("cert.pem has expired")),
        (&*young.cert, &*young.key, None, Some("cert.pem is not valid yet")),
        (&*cert, &*key, Some("hello"), Some("ca.pem holds no certificate")),
        (&*cert, &*key, Some(short), Some("ca.pem holds a certificate that cannot be read")),
    ];
    for (cert, key, ca, right) in table {
        let made = server(cert, key, ca);
        match (&made, right) {
            (Ok(_), None) => {}
            (Err(error), Some(right)) => {
                let text = error.to_string();
                assert!(text.contains(right), "{text} does not say: {right}");
                assert!(!text.contains("AAAA") && !text.contains("MII"), "{text}");
                assert!(!error.help().is_empty());
            }
            (made, right) => panic!("{made:?}, not {right:?}"),
        }
    }
}

#[test]
fn the_end_of_a_certificate_is_known() {
    let authority = Authority::new();
    let pair = authority.pair_with(&["a.test"], |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2099, 1, 1);
    });
    let tls = server(&pair.cert, &pair.key, None).unwrap();
    assert_eq!(tls.not_after(), 4_070_908_800);
}

#[test]
fn content_that_cannot_be_used_leaves_the_certificate_in_force() {
    let authority = Authority::new();
    let pair = authority.pair(&["a.test"]);
    let old = authority.pair_with(&["a.test"], expired);
    let tls = server(&pair.cert, &pair.key, None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = vec![
        written(directory.path(), "cert.pem", &old.cert),
        written(directory.path(), "key.pem", &old.key),
    ];
    let before = tls.not_after();

    assert!(matches!(tls.replace(&Contents::read(&paths).unwrap()), Err(TlsError::Expired(_))));

    assert_eq!(tls.not_after(), before);
}

#[test]
fn mcp_49_a_certificate_names_its_holder_by_one_spiffe_id_or_all_its_dns_names() {
    let authority = Authority::new();
    let table: [(&[&str], San, Option<&str>); 7] = [
        (&["spiffe://mesh/ns/a/sa/b"], San::Spiffe, Some("spiffe://mesh/ns/a/sa/b")),
        (&["spiffe://mesh/a", "spiffe://mesh/b"], San::Spiffe, None),
        (&["https://mesh/a"], San::Spiffe, None),
        (&["b.test"], San::Spiffe, None),
        (&["b.test", "A.test", "spiffe://mesh/a"], San::Dns, Some("a.test,b.test")),
        (&["spiffe://mesh/a"], San::Dns, None),
        (&["spiffe://"], San::Spiffe, None),
    ];
    for (names, san, right) in table {
        let pair = authority.pair(names);
        let certificate = CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap();
        assert_eq!(subject(&certificate, san).as_deref(), right, "{names:?}");
    }
}
