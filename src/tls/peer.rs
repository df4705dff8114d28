//! Who a client certificate says its holder is.

use rustls_pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The longest name that is taken for a principal, in bytes; SPIFFE's own limit is 2048.
const MAX_NAME: usize = 2048;

/// Which names of a certificate say who its holder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum San {
    /// Its DNS names.
    Dns,
    /// Its one URI, a SPIFFE id.
    Spiffe,
}

impl San {
    /// By the word of the configuration.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "dns" => Some(Self::Dns),
            "spiffe" => Some(Self::Spiffe),
            _ => None,
        }
    }
}

/// The holder's name; `None` if the certificate has none of this kind.
///
/// A SPIFFE certificate holds exactly one URI; one with more says nothing. Several DNS names are one
/// name of all of them, so that a certificate that is made anew with the same names is the same
/// principal, whatever their order.
pub fn subject(certificate: &CertificateDer<'_>, san: San) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let name = match san {
        San::Dns => {
            let mut names: Vec<String> =
                certificate.valid_dns_names().map(str::to_ascii_lowercase).collect();
            names.sort_unstable();
            names.dedup();
            names.join(",")
        }
        San::Spiffe => {
            let mut names = certificate.valid_uri_names();
            let name = names.next()?.to_owned();
            let is_only = names.next().is_none();
            let is_id = name.strip_prefix("spiffe://").is_some_and(|rest| !rest.is_empty());
            if is_only && is_id { name } else { String::new() }
        }
    };
    let is_visible = name.bytes().all(|byte| byte.is_ascii_graphic());
    (!name.is_empty() && name.len() <= MAX_NAME && is_visible).then_some(name)
}
