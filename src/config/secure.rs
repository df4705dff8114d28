//! What is read out of files that change while the sidecar runs: certificates, keys, credentials.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::http::injected::{self, Injected, Line};
use crate::reread::Contents;
use crate::tls::{ClientFiles, ClientTls, ServerFiles, ServerTls, TlsError};

use super::given::{ConfigErrors, Origin, Reader, shown};

/// What was made of files at the start, and which files.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// What was made of them; shared with whoever uses it.
    pub value: T,
    /// The files.
    pub paths: Vec<PathBuf>,
    /// What they held.
    pub contents: Contents,
}

/// The data port's certificate.
pub(super) fn server(reader: &mut Reader) -> Option<Loaded<Arc<ServerTls>>> {
    let members = ["tls.cert_file", "tls.key_file", "tls.client_ca_file"];
    port(reader, members, ServerTls::new)
}

/// The certificate of the admin API's network address.
pub(super) fn admin(reader: &mut Reader) -> Option<Loaded<Arc<ServerTls>>> {
    let members = ["admin.cert_file", "admin.key_file", "admin.client_ca_file"];
    port(reader, members, ServerTls::http1)
}

fn port(
    reader: &mut Reader,
    members: [&'static str; 3],
    make: impl FnOnce(&Contents) -> Result<ServerTls, TlsError>,
) -> Option<Loaded<Arc<ServerTls>>> {
    let [cert_member, key_member, ca_member] = members;
    let cert = reader.path(cert_member);
    let key = reader.path(key_member);
    let client_ca = reader.path(ca_member);
    let (cert, key) = both(reader, (cert_member, cert), (key_member, key))?;
    let Some((cert, key)) = cert.zip(key) else {
        if client_ca.is_some() {
            let origin = origin(reader, ca_member);
            let what = format!("`{ca_member}` is given without a certificate");
            let help = format!("give `{cert_member}` and `{key_member}` too");
            reader.error(origin, what, help);
        }
        return None;
    };
    let files = ServerFiles { cert, key, client_ca };
    load(reader, files.paths(), &members, make)
}

/// The certificates of the way to an `https://` upstream; `host` is what its URL names.
pub(super) fn client(reader: &mut Reader, host: Option<&str>) -> Option<Loaded<Arc<ClientTls>>> {
    let ca = reader.path("upstream.ca_file");
    let cert = reader.path("upstream.cert_file");
    let key = reader.path("upstream.key_file");
    let name = reader.read("upstream.server_name", |text| {
        let help = || "give the name in the upstream's certificate".to_owned();
        ClientTls::server_name(text).map_err(|_| (format!("is {}", shown(text)), help()))
    });
    let (cert, key) = both(reader, ("upstream.cert_file", cert), ("upstream.key_file", key))?;
    let Some(host) = host else {
        for member in
            ["upstream.ca_file", "upstream.cert_file", "upstream.key_file", "upstream.server_name"]
        {
            if reader.list(member).is_some() {
                let origin = origin(reader, member);
                let what = format!("`{member}` is for an https:// upstream, and this one is not");
                reader.error(origin, what, "give an https:// URL, or remove it");
            }
        }
        return None;
    };
    let name = match name.map_or_else(|| ClientTls::server_name(host), Ok) {
        Ok(name) => name,
        Err(_) => {
            let origin = origin(reader, "upstream.url");
            let what = format!("the host {} cannot be in a certificate", shown(host));
            reader.error(origin, what, "give `upstream.server_name`");
            return None;
        }
    };
    let files = ClientFiles { ca, pair: cert.zip(key) };
    let mut members = Vec::new();
    if files.ca.is_some() {
        members.push("upstream.ca_file");
    }
    members.extend(["upstream.cert_file", "upstream.key_file"]);
    let paths = files.paths();
    load(reader, paths, &members, |contents| ClientTls::new(name, &files, contents))
}

/// The headers that every request to the upstream carries.
pub(super) fn headers(reader: &mut Reader) -> Option<Loaded<Injected>> {
    let path = reader.path("upstream.headers_file")?;
    let origin = origin(reader, "upstream.headers_file");
    let (lines, paths, contents) = headers_of(reader, path, origin)?;
    Some(Loaded { value: Injected::new(lines), paths, contents })
}

/// Reads a file of `Name: value` lines, such as `upstream.headers_file`; each value is marked
/// sensitive.
///
/// # Errors
///
/// Each line that is no header, or one that the proxy sets itself. No value is shown.
pub fn headers_file(path: &Path) -> Result<Vec<Line>, ConfigErrors> {
    let mut reader = Reader::default();
    match headers_of(&mut reader, path.to_owned(), Origin::Nowhere) {
        Some((lines, ..)) => Ok(lines),
        None => Err(ConfigErrors(reader.errors)),
    }
}

type Headers = (Vec<Line>, Vec<PathBuf>, Contents);

fn headers_of(reader: &mut Reader, path: PathBuf, origin: Origin) -> Option<Headers> {
    let paths = vec![path];
    let contents = match Contents::read(&paths) {
        Ok(contents) => contents,
        Err(error) => {
            reader.error(origin, error.to_string(), "it holds one `Name: value` on each line");
            return None;
        }
    };
    match read_lines(&contents) {
        Ok(lines) => Some((lines, paths, contents)),
        Err(errors) => {
            let name: Arc<str> = contents.at(0).0.display().to_string().into();
            for error in errors {
                let origin = Origin::File { name: name.clone(), line: error.line, column: 1 };
                reader.error(origin, error.what, error.help);
            }
            None
        }
    }
}

/// The lines of a file of headers.
///
/// # Errors
///
/// As [`injected::read`]; one for the whole if it is no text.
pub fn read_lines(contents: &Contents) -> Result<Vec<Line>, Vec<injected::LineError>> {
    let (_, bytes) = contents.at(0);
    let text = std::str::from_utf8(bytes).map_err(|_| {
        let what = "the file is no text".to_owned();
        vec![injected::LineError { line: 1, what, help: "it holds `Name: value` lines" }]
    })?;
    injected::read(text)
}

fn load<T>(
    reader: &mut Reader,
    paths: Vec<PathBuf>,
    members: &[&'static str],
    make: impl FnOnce(&Contents) -> Result<T, TlsError>,
) -> Option<Loaded<Arc<T>>> {
    let made = Contents::read(&paths).map_err(TlsError::File).and_then(|contents| {
        let value = make(&contents)?;
        Ok((Arc::new(value), contents))
    });
    match made {
        Ok((value, contents)) => Some(Loaded { value, paths, contents }),
        Err(error) => {
            let text = error.to_string();
            // The member whose file the error names; the last one of a pair, which is its key.
            let is_named = |path: &Path| text.contains(&path.display().to_string());
            let at = paths.iter().rposition(|path| is_named(path)).unwrap_or(0);
            let member = members.get(at).copied().unwrap_or("upstream.url");
            let origin = origin(reader, member);
            reader.error(origin, format!("`{member}`: {text}"), error.help());
            None
        }
    }
}

/// Two settings that go together; `None` if only one of them is given.
fn both(
    reader: &mut Reader,
    (left, left_path): (&'static str, Option<PathBuf>),
    (right, right_path): (&'static str, Option<PathBuf>),
) -> Option<(Option<PathBuf>, Option<PathBuf>)> {
    let (given, missing) = match (&left_path, &right_path) {
        (Some(_), None) => (left, right),
        (None, Some(_)) => (right, left),
        (None, None) | (Some(_), Some(_)) => return Some((left_path, right_path)),
    };
    if reader.list(missing).is_none() {
        let origin = origin(reader, given);
        let what = format!("`{given}` is given without `{missing}`");
        reader.error(origin, what, "a certificate and its key go together");
    }
    None
}

fn origin(reader: &Reader, member: &'static str) -> Origin {
    reader.list(member).map_or(Origin::Nowhere, |given| given.origin)
}
