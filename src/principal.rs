//! Who calls, where something stronger than the credential itself says so (standards MCP-49).
//!
//! Three sources, in this order; the first that is there names the principal:
//!
//! | source | believed | name |
//! |---|---|---|
//! | a header | from listed peers only: a mesh's proxy, which sets it itself | `header:VALUE` |
//! | the client certificate | verified by the handshake | `mtls:SAN` |
//! | a JWT in `Authorization: Bearer` | verified here ([`jwt`]) | `jwt:ISS/SUB[/CLIENT]` |
//!
//! Names are stable when a token or a certificate is made anew, which is what they are for: keys,
//! repeats and confirmations are scoped by them. Without a source the principal is weak, a hash of
//! the credentials.
//!
//! The header is taken out of requests of other peers, in any spelling, so that the upstream is not
//! told it either. A client certificate that names nobody, and a token that is required and missing
//! or invalid, are refused with 401 before anything is sent.

pub mod jwt;
mod keys;

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap, HeaderName};

use crate::call::refusal::Refusal;

use jwt::Jwt;

/// The longest name in a header, in bytes.
const MAX_NAME: usize = 255;

/// The configured sources.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A header, and the peers that it is believed from.
    pub header: Option<FromHeader>,
    /// The client certificate.
    pub mtls: bool,
    /// A token.
    pub jwt: Option<Arc<Jwt>>,
}

/// A header that listed peers set.
#[derive(Clone, Debug)]
pub struct FromHeader {
    /// Its name.
    pub name: HeaderName,
    /// Who is listed.
    pub from: Vec<Network>,
}

/// Addresses with a common beginning, such as `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// A text that is no address and no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a network is an address, or an address, `/` and the number of bits that count")]
pub struct NetworkError;

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => most,
            Some(prefix) if prefix.bytes().all(|byte| byte.is_ascii_digit()) => {
                prefix.parse().ok().filter(|prefix| *prefix <= most).ok_or(NetworkError)?
            }
            Some(_) => return Err(NetworkError),
        };
        Ok(Self { address, prefix })
    }
}

impl Network {
    /// The address is one of them. An IPv4 address that came in IPv6's form counts as what it is.
    pub fn contains(&self, address: IpAddr) -> bool {
        let left = |bits: u128, width: u32| {
            let rest = width.saturating_sub(u32::from(self.prefix));
            bits.checked_shr(rest).unwrap_or(0)
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(theirs)) => {
                left(u128::from(own.to_bits()), 32) == left(u128::from(theirs.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(theirs)) => {
                left(own.to_bits(), 128) == left(theirs.to_bits(), 128)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// Its address.
    pub address: IpAddr,
    /// The name in its certificate.
    pub name: Option<&'a Arc<str>>,
}

impl Sources {
    /// There are none: every principal is weak.
    pub fn is_empty(&self) -> bool {
        self.header.is_none() && !self.mtls && self.jwt.is_none()
    }

    /// What this peer says of others is believed.
    pub fn lists(&self, address: IpAddr) -> bool {
        let networks = self.header.as_ref().map(|header| &header.from);
        networks.is_some_and(|from| from.iter().any(|network| network.contains(address)))
    }

    /// The strong principal's name; `None` if no source names one.
    ///
    /// # Errors
    ///
    /// A refusal for a name that is malformed, a certificate that names nobody, or a required token
    /// that is not valid.
    pub async fn identify(
        &self,
        headers: &mut HeaderMap,
        peer: Peer<'_>,
        now_ms: i64,
    ) -> Result<Option<Arc<str>>, Refusal> {
        let named = match &self.header {
            None => None,
            Some(header) => header.read(headers, self.lists(peer.address))?,
        };
        let claimed = match &self.jwt {
            None => None,
            Some(jwt) => {
                let token = bearer(headers);
                match jwt.verify(token, now_ms).await {
                    Ok(id) => Some(id),
                    Err(_) if !jwt.is_required() => None,
                    Err(error) => return Err(Refusal::Unauthenticated(error.text())),
                }
            }
        };
        let shown = match (self.mtls, peer.name) {
            (false, _) => None,
            (true, Some(name)) => Some(Arc::from(format!("mtls:{name}"))),
            (true, None) => {
                return Err(Refusal::Unauthenticated("the client certificate names nobody"));
            }
        };
        Ok(named.or(shown).or(claimed))
    }
}

impl FromHeader {
    /// Reads the name, or takes the header out of what a peer that is not listed sent.
    fn read(&self, headers: &mut HeaderMap, is_listed: bool) -> Result<Option<Arc<str>>, Refusal> {
        let spelt: Vec<HeaderName> =
            headers.keys().filter(|name| self.is_meant(name)).cloned().collect();
        if !is_listed {
            for name in spelt {
                headers.remove(name);
            }
            return Ok(None);
        }
        let wrong = || Refusal::DuplicateHeader("that names the principal");
        match spelt.as_slice() {
            [] => return Ok(None),
            [name] if *name == self.name => {}
            _ => return Err(wrong()),
        }
        let mut values = headers.get_all(&self.name).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return Err(wrong()) };
        let name = value.to_str().ok().filter(|name| {
            !name.is_empty()
                && name.len() <= MAX_NAME
                && name.bytes().all(|byte| byte.is_ascii_graphic())
        });
        let name = name.ok_or(Refusal::Unauthenticated(
            "the header that names the principal is not 1 to 255 visible characters",
        ))?;
        Ok(Some(format!("header:{name}").into()))
    }

    /// The name is the header's, `_` counting as `-`.
    fn is_meant(&self, name: &HeaderName) -> bool {
        let fold = |byte: u8| if byte == b'_' { b'-' } else { byte };
        let (ours, theirs) = (self.name.as_str(), name.as_str());
        ours.len() == theirs.len()
            && ours.bytes().zip(theirs.bytes()).all(|(ours, theirs)| fold(ours) == fold(theirs))
    }
}

/// The one bearer token.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Peer<'static> =
        Peer { address: IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3)), name: None };

    fn from_header(from: &[&str]) -> Sources {
        let from = from.iter().map(|network| network.parse().unwrap()).collect();
        let name = HeaderName::from_static("x-agent-id");
        Sources { header: Some(FromHeader { name, from }), ..Sources::default() }
    }

    fn sent(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_network_is_an_address_with_the_bits_that_count() {
        let table = [
            ("10.0.0.0/8", "10.255.0.1", Some(true)),
            ("10.0.0.0/8", "11.0.0.1", Some(false)),
            ("10.0.0.0/8", "::ffff:10.1.1.1", Some(true)),
            ("10.1.2.3", "10.1.2.3", Some(true)),
            ("10.1.2.3", "10.1.2.4", Some(false)),
            ("0.0.0.0/0", "1.2.3.4", Some(true)),
            ("0.0.0.0/0", "::1", Some(false)),
            ("fd00::/8", "fd12::1", Some(true)),
            ("fd00::/8", "fe80::1", Some(false)),
            ("::/0", "::1", Some(true)),
            ("10.0.0.0/33", "10.0.0.1", None),
            ("10.0.0.0/", "10.0.0.1", None),
            ("10.0.0.0/+8", "10.0.0.1", None),
            ("mesh", "10.0.0.1", None),
        ];
        for (network, address, right) in table {
            let got = network
                .parse::<Network>()
                .ok()
                .map(|network| network.contains(address.parse().unwrap()));
            assert_eq!(got, right, "{network} {address}");
        }
    }

    #[tokio::test]
    async fn mcp_49_a_header_counts_from_listed_peers_and_is_taken_out_of_others() {
        let lines = [("x-agent-id", "a"), ("other", "1")];
        let mut headers = sent(&lines);
        let listed = from_header(&["10.0.0.0/8"]);
        let name = listed.identify(&mut headers, PEER, 0).await.unwrap();
        assert_eq!(name.as_deref(), Some("header:a"));
        assert_eq!(headers.len(), 2);

        let mut headers = sent(&[("x-agent-id", "a"), ("x_agent-id", "b"), ("other", "1")]);
        let others = from_header(&["192.168.0.0/16"]);
        assert_eq!(others.identify(&mut headers, PEER, 0).await, Ok(None));
        assert_eq!(headers.len(), 1);
    }

    #[tokio::test]
    async fn a_header_with_two_readings_names_nobody() {
        let listed = from_header(&["10.1.2.3"]);
        let long = "a".repeat(256);
        let odd: [&[(&str, &str)]; 6] = [
            &[("x-agent-id", "a"), ("x-agent-id", "a")],
            &[("x-agent-id", "a"), ("x_agent_id", "a")],
            &[("x_agent_id", "a")],
            &[("x-agent-id", "")],
            &[("x-agent-id", "a b")],
            &[("x-agent-id", &long)],
        ];
        for lines in odd {
            let found = listed.identify(&mut sent(lines), PEER, 0).await;
            assert!(found.is_err(), "{lines:?}: {found:?}");
        }
        assert_eq!(listed.identify(&mut sent(&[]), PEER, 0).await, Ok(None));
    }

    #[tokio::test]
    async fn mcp_49_a_certificate_that_names_nobody_is_refused() {
        let sources = Sources { mtls: true, ..Sources::default() };
        let name: Arc<str> = "spiffe://mesh/a".into();
        let peer = Peer { name: Some(&name), ..PEER };
        let found = sources.identify(&mut sent(&[]), peer, 0).await.unwrap();
        assert_eq!(found.as_deref(), Some("mtls:spiffe://mesh/a"));
        let refused = sources.identify(&mut sent(&[]), PEER, 0).await.unwrap_err();
        assert_eq!((refused.code(), refused.status()), ("unauthenticated", 401));
    }
}
