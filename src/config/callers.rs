//! `principal`: what says who calls, beside the credentials themselves.

use std::sync::Arc;

use http::HeaderName;

use crate::http::headers as own_headers;
use crate::principal::jwt::{Jwt, Required};
use crate::principal::{FromHeader, Network, Sources};
use crate::reread::Contents;
use crate::tls::{ClientFiles, ClientTls, San};
use crate::upstream::{Authority, Protocol};

use super::given::{Origin, Reader, shown};
use super::secure::Loaded;
use super::{Url, UrlScheme, upstream_url};

/// What says who calls.
#[derive(Clone, Debug, Default)]
pub struct PrincipalConfig {
    /// The sources.
    pub sources: Sources,
    /// Which name of a client certificate counts. Default none.
    pub san: Option<San>,
    /// The file that holds the keys of the tokens' issuer.
    pub keys_file: Option<Loaded<Arc<Jwt>>>,
    /// Where they are fetched from, in place of a file.
    pub keys_url: Option<KeysUrl>,
}

/// Where an issuer publishes its keys.
#[derive(Clone, Debug)]
pub struct KeysUrl {
    /// The host and port.
    pub authority: Authority,
    /// The value of `Host`.
    pub host: String,
    /// The path.
    pub path: String,
    /// How it is spoken to.
    pub protocol: Protocol,
}

pub(super) fn principal(reader: &mut Reader, has_client_ca: bool) -> PrincipalConfig {
    let header = header(reader);
    let san = reader.read("principal.mtls", |text| {
        let help = "give `spiffe` or `dns`".to_owned();
        San::from_name(text).ok_or_else(|| (format!("is {}", shown(text)), help))
    });
    if san.is_some() && !has_client_ca {
        let origin = origin(reader, "principal.mtls");
        let what = "`principal.mtls` needs verified client certificates";
        reader.error(origin, what, "give `tls.client_ca_file` too");
    }
    let (jwt, keys_file, keys_url) = jwt(reader);
    let sources = Sources { header, mtls: san.is_some(), jwt };
    PrincipalConfig { sources, san, keys_file, keys_url }
}

fn header(reader: &mut Reader) -> Option<FromHeader> {
    let name = reader.read("principal.headers.name", |text| {
        let help = || "give a header that only the listed peers set, such as X-Agent-Id".to_owned();
        let name: Option<HeaderName> = text.parse().ok();
        name.filter(|name| !own_headers::has_meaning(name))
            .ok_or_else(|| (format!("is {}", shown(text)), help()))
    });
    let mut from: Vec<Network> = Vec::new();
    if let Some(given) = reader.list("principal.headers.from") {
        for text in &given.values {
            match text.parse() {
                Ok(network) => from.push(network),
                Err(_) => {
                    let what = format!("`principal.headers.from` holds {}", shown(text));
                    let help = "give addresses or networks, such as 10.0.0.0/8";
                    reader.error(given.origin.clone(), what, help);
                }
            }
        }
    }
    let has_from = reader.list("principal.headers.from").is_some();
    match (name, has_from) {
        (Some(name), true) => Some(FromHeader { name, from }),
        (Some(_), false) => {
            let origin = origin(reader, "principal.headers.name");
            let what = "`principal.headers.name` is given without `principal.headers.from`";
            let help = "list the peers that it is believed from; every caller can send a header";
            reader.error(origin, what, help);
            None
        }
        (None, true) if reader.list("principal.headers.name").is_none() => {
            let origin = origin(reader, "principal.headers.from");
            let what = "`principal.headers.from` is given without `principal.headers.name`";
            reader.error(origin, what, "name the header that these peers set");
            None
        }
        (None, _) => None,
    }
}

type Keyed = (Option<Arc<Jwt>>, Option<Loaded<Arc<Jwt>>>, Option<KeysUrl>);

fn jwt(reader: &mut Reader) -> Keyed {
    const NONE: Keyed = (None, None, None);
    let issuer = reader.text("principal.jwt.issuer");
    let audiences = reader.list("principal.jwt.audience").map(|given| given.values);
    let file = reader.path("principal.jwt.jwks_file");
    let url = reader.read("principal.jwt.jwks_url", upstream_url);
    let required = reader.read("principal.jwt.required", |text| match text {
        "true" => Ok(Required::Yes),
        "false" => Ok(Required::No),
        other => Err((format!("is {}", shown(other)), "give `true` or `false`".to_owned())),
    });
    let required = required.unwrap_or(Required::No);
    let members = ["issuer", "audience", "jwks_file", "jwks_url", "required"];
    let given = members.iter().find_map(|member| reader.list(jwt_member(member)));
    let Some(given) = given else { return NONE };
    let has_url = reader.list("principal.jwt.jwks_url").is_some();
    let (Some((_, issuer)), Some(audiences)) = (issuer, audiences.filter(|list| !list.is_empty()))
    else {
        let what = "`principal.jwt` needs an issuer and an audience";
        let help = "give `issuer` and `audience`: a token for somebody else is no proof here";
        reader.error(given.origin, what, help);
        return NONE;
    };
    match (file, url) {
        (Some(_), _) if has_url => {
            let what = "`principal.jwt` has both `jwks_file` and `jwks_url`";
            reader.error(given.origin, what, "give one of them");
            NONE
        }
        (Some(file), _) => {
            let origin = origin(reader, "principal.jwt.jwks_file");
            let paths = vec![file];
            let contents = match Contents::read(&paths) {
                Ok(contents) => contents,
                Err(error) => {
                    reader.error(origin, error.to_string(), error.help());
                    return NONE;
                }
            };
            match Jwt::with_keys(issuer, audiences, required, contents.at(0).1) {
                Ok(jwt) => {
                    let jwt = Arc::new(jwt);
                    let loaded = Loaded { value: Arc::clone(&jwt), paths, contents };
                    (Some(jwt), Some(loaded), None)
                }
                Err(error) => {
                    let what = format!("{}: {error}", contents.at(0).0.display());
                    reader.error(origin, what, "give the issuer's JSON Web Key Set");
                    NONE
                }
            }
        }
        (None, Some(url)) => match keys_url(reader, url) {
            Some(url) => {
                let jwt = Arc::new(Jwt::with_url(issuer, audiences, required));
                (Some(jwt), None, Some(url))
            }
            None => NONE,
        },
        (None, None) => {
            if !has_url {
                let what = "`principal.jwt` needs the keys of its issuer";
                reader.error(given.origin, what, "give `jwks_file` or `jwks_url`");
            }
            NONE
        }
    }
}

fn keys_url(reader: &mut Reader, url: Url) -> Option<KeysUrl> {
    let origin = origin(reader, "principal.jwt.jwks_url");
    let protocol = match url.scheme {
        UrlScheme::Http => Protocol::Clear,
        UrlScheme::H2c => Protocol::ClearHttp2,
        UrlScheme::Https => {
            let Ok(name) = ClientTls::server_name(url.bare_host()) else {
                let what = "`principal.jwt.jwks_url` names a host that no certificate can";
                reader.error(origin, what, "give the issuer's own name");
                return None;
            };
            let none = Contents::read(&[]).ok()?;
            match ClientTls::new(name, &ClientFiles::default(), &none) {
                Ok(tls) => Protocol::Tls(Arc::new(tls)),
                Err(error) => {
                    reader.error(origin, error.to_string(), error.help());
                    return None;
                }
            }
        }
    };
    let path = if url.base.is_empty() { "/".to_owned() } else { url.base };
    Some(KeysUrl { authority: url.authority, host: url.host, path, protocol })
}

fn jwt_member(member: &str) -> &'static str {
    match member {
        "issuer" => "principal.jwt.issuer",
        "audience" => "principal.jwt.audience",
        "jwks_file" => "principal.jwt.jwks_file",
        "jwks_url" => "principal.jwt.jwks_url",
        _ => "principal.jwt.required",
    }
}

fn origin(reader: &Reader, member: &'static str) -> Origin {
    reader.list(member).map_or(Origin::Nowhere, |given| given.origin)
}
