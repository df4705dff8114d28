//! Who may ask the admin API.
//!
//! | listener | who | may |
//! |---|---|---|
//! | the Unix socket (mode 0600) | the user that runs the sidecar; the kernel says who | everything |
//! | a network address | whoever has a token out of `admin.tokens_file`, and where `admin.client_ca_file` is given a certificate too | what the token's role may |
//!
//! On a network address that it comes from localhost proves nothing: in a pod the agent is localhost too.
//! So each request there needs a token, the description of the API included, and a page in a browser that
//! was led to this address by its own name server (DNS rebinding) is turned away: `Host` must name the
//! address, and an `Origin` must be the same. With a certificate the name is for the certificate to
//! judge: a browser that was led here under another name ends the handshake. An address that other hosts
//! reach always has one, since a token in clear is everybody's.
//!
//! ```text
//! # name   role      token, or the SHA-256 of one
//! grafana  read      sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//! oncall   operate   3fHh2rT0bYvVx8Qm5nK1sWcE7uJ9dLgA
//! ```
//!
//! The file is read for each request, so that a Secret that is replaced counts at once; one that cannot be
//! read leaves the last good tokens in force, and the log says so. Tokens are compared by their hash, each
//! with all of them, in a time that does not depend on where they differ.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::Failure;
use crate::clock::Clock;
use crate::contract::key::from_hex;

/// The shortest token, in characters: 32 of a random alphabet cannot be guessed.
const MIN_TOKEN: usize = 32;

/// The longest file that is read, in bytes, and the most tokens in it.
const MAX_FILE: u64 = 64 * 1024;
const MAX_TOKENS: usize = 100;

/// Requests that come at once on a network address, and in each second after that: what a console and a
/// few scripts need, and no more than the control thread has time for.
const BURST: u32 = 200;
const PER_SECOND: u32 = 50;

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// `GET`.
    Read,
    /// Everything.
    Operate,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Nobody knows: the kernel did not say.
    Unknown,
    /// The name of a token.
    Token(Arc<str>),
    /// A user of this host.
    Uid(u32),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(name) => write!(f, "token:{name}"),
            Self::Uid(uid) => write!(f, "uid:{uid}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// Why a file of tokens cannot be used. Never names a token.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// It cannot be read.
    #[error("{} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is no token.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// There is no token in it.
    #[error("{} has no token: nobody could ask", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

struct Token {
    name: Arc<str>,
    role: Role,
    hash: [u8; 32],
}

/// The tokens of a file.
pub struct Tokens {
    path: PathBuf,
    held: Mutex<Arc<[Token]>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.path.display())
    }
}

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// See [`TokensError`].
    pub fn open(path: &Path) -> Result<Self, TokensError> {
        Ok(Self { path: path.to_owned(), held: Mutex::new(read(path)?) })
    }

    /// The name and role of the token that was presented.
    fn find(&self, presented: &[u8]) -> Option<(Arc<str>, Role)> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match read(&self.path) {
            Ok(tokens) => *held = tokens,
            Err(error) => tracing::warn!(%error, "the tokens stay as they were"),
        }
        let tokens = Arc::clone(&held);
        drop(held);
        let hash: [u8; 32] = Sha256::digest(presented).into();
        // Every one is looked at, so that the time says nothing of which it is.
        tokens.iter().fold(None, |found, token| {
            let is_it = bool::from(token.hash.ct_eq(&hash));
            if is_it { Some((Arc::clone(&token.name), token.role)) } else { found }
        })
    }
}

fn read(path: &Path) -> Result<Arc<[Token]>, TokensError> {
    use std::io::Read as _;
    let unreadable = |source| TokensError::Unreadable { path: path.to_owned(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE).read_to_string(&mut text).map_err(unreadable)?;
    let mut tokens: Vec<Token> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong =
            |what| TokensError::Line { path: path.to_owned(), line: index.saturating_add(1), what };
        let mut words = line.split_whitespace();
        let Some(name) = words.next().filter(|name| !name.starts_with('#')) else { continue };
        let (Some(role), Some(token), None) = (words.next(), words.next(), words.next()) else {
            return Err(wrong("a line is a name, a role and a token"));
        };
        let role = match role {
            "operate" => Role::Operate,
            "read" => Role::Read,
            _ => return Err(wrong("a role is `read` or `operate`")),
        };
        if tokens.iter().any(|known| &*known.name == name) {
            return Err(wrong("this name is given twice"));
        }
        if tokens.len() >= MAX_TOKENS {
            return Err(wrong("there are more than 100 tokens"));
        }
        let hash = match token.strip_prefix("sha256:") {
            Some(hex) => from_hex(hex.as_bytes())
                .ok_or_else(|| wrong("`sha256:` is followed by 64 digits"))?,
            None if token.len() < MIN_TOKEN => {
                return Err(wrong("a token has at least 32 characters"));
            }
            None => Sha256::digest(token.as_bytes()).into(),
        };
        tokens.push(Token { name: name.into(), role, hash });
    }
    if tokens.is_empty() {
        return Err(TokensError::Empty { path: path.to_owned() });
    }
    Ok(tokens.into())
}

/// What stands before the API on a network address.
#[derive(Debug)]
pub struct Gate {
    tokens: Tokens,
    /// What `Host` may be; anything where a certificate judges the name.
    hosts: Option<Vec<String>>,
    clock: Clock,
    left: Mutex<(i64, u32)>,
}

impl Gate {
    /// For a listener on `address` without a certificate.
    pub fn new(tokens: Tokens, address: SocketAddr, clock: Clock) -> Self {
        let mut hosts = vec![address.to_string()];
        if address.ip().is_loopback() {
            hosts.push(format!("localhost:{}", address.port()));
        }
        Self { hosts: Some(hosts), ..Self::behind_tls(tokens, clock) }
    }

    /// For a listener that shows a certificate.
    pub fn behind_tls(tokens: Tokens, clock: Clock) -> Self {
        let left = Mutex::new((clock.now_ms(), BURST));
        Self { tokens, hosts: None, clock, left }
    }

    /// Lets a request in, or gives the answer that turns it away.
    pub(super) fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<Who, Failure> {
        self.check_place(headers)?;
        if !self.has_room() {
            return Err(Failure::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_requests",
                "too many requests at once; try again in a second",
            ));
        }
        let presented = one(headers, &header::AUTHORIZATION).and_then(bearer);
        let found = presented.and_then(|token| self.tokens.find(token));
        let Some((name, role)) = found else {
            return Err(Failure::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "this needs `Authorization: Bearer TOKEN` with a token of the sidecar's tokens file",
            ));
        };
        let needed =
            if matches!(*method, Method::GET | Method::HEAD) { Role::Read } else { Role::Operate };
        if role < needed {
            return Err(Failure::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "this token may only read; it needs the role `operate`",
            ));
        }
        Ok(Who::Token(name))
    }

    fn check_place(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let host = one(headers, &header::HOST).and_then(|host| host.to_str().ok());
        let host = host.filter(|host| {
            let hosts = self.hosts.as_ref();
            hosts.is_none_or(|hosts| hosts.iter().any(|own| own.eq_ignore_ascii_case(host)))
        });
        let Some(host) = host else {
            return Err(Failure::new(
                StatusCode::MISDIRECTED_REQUEST,
                "wrong_host",
                "`Host` names another place than this listener's address",
            ));
        };
        check_origin(headers, Some(host))
    }

    /// A token bucket.
    fn has_room(&self) -> bool {
        let now_ms = self.clock.now_ms();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let (since_ms, count) = *left;
        let seconds = now_ms.saturating_sub(since_ms).max(0) / 1000;
        let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(PER_SECOND);
        let count = count.saturating_add(more).min(BURST);
        let since_ms = if seconds > 0 { now_ms } else { since_ms };
        *left = (since_ms, count.saturating_sub(1));
        count > 0
    }
}

/// A page of another origin may not ask; nor may any page ask a Unix socket, which has no origin.
pub(super) fn check_origin(headers: &HeaderMap, host: Option<&str>) -> Result<(), Failure> {
    if !headers.contains_key(header::ORIGIN) {
        return Ok(());
    }
    let origin = one(headers, &header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let named = origin.and_then(|origin| {
        origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
    });
    match (named, host) {
        (Some(named), Some(host)) if named.eq_ignore_ascii_case(host) => Ok(()),
        (_, _) => Err(Failure::new(
            StatusCode::FORBIDDEN,
            "wrong_origin",
            "a page of another origin may not ask the admin API",
        )),
    }
}

fn one<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: &str = "reader-0123456789-0123456789-0123456789";
    const OPERATOR: &str = "operator-0123456789-0123456789-012345";

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn gate(file: &tempfile::NamedTempFile) -> (Gate, crate::clock::ManualClock) {
        let (clock, hand) = Clock::manual(1_800_000_000_000);
        let tokens = Tokens::open(file.path()).unwrap();
        (Gate::new(tokens, "127.0.0.1:9465".parse().unwrap(), clock), hand)
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn asked(gate: &Gate, method: Method, pairs: &[(&'static str, &str)]) -> u16 {
        gate.admit(&method, &headers(pairs)).map_or_else(|failure| failure.status.as_u16(), |_| 200)
    }

    #[test]
    fn a_request_needs_a_token_of_the_role_and_the_right_host_and_origin() {
        let digest: [u8; 32] = Sha256::digest(OPERATOR).into();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = file(&format!("# who\nr read {READER}\n\no operate sha256:{hex}\n"));
        let (gate, _hand) = gate(&file);
        let host = ("host", "127.0.0.1:9465");
        let (reader, operator) = (format!("Bearer {READER}"), format!("bearer {OPERATOR}"));
        let (reader, operator) =
            (("authorization", reader.as_str()), ("authorization", operator.as_str()));
        let (get, post) = (|| Method::GET, || Method::POST);

        assert_eq!(asked(&gate, get(), &[host, reader]), 200);
        assert_eq!(asked(&gate, post(), &[host, reader]), 403);
        assert_eq!(asked(&gate, post(), &[host, operator]), 200);
        assert_eq!(asked(&gate, get(), &[("host", "LOCALHOST:9465"), operator]), 200);
        assert_eq!(asked(&gate, get(), &[host]), 401);
        assert_eq!(asked(&gate, get(), &[host, reader, operator]), 401);
        assert_eq!(asked(&gate, get(), &[host, ("authorization", "Bearer x")]), 401);
        assert_eq!(asked(&gate, get(), &[host, ("authorization", READER)]), 401);
        for other in ["evil.example:9465", "127.0.0.1:9466", "127.0.0.1"] {
            assert_eq!(asked(&gate, get(), &[("host", other), operator]), 421, "{other}");
        }
        assert_eq!(asked(&gate, get(), &[operator]), 421);
        let same = ("origin", "http://127.0.0.1:9465");
        assert_eq!(asked(&gate, get(), &[host, operator, same]), 200);
        for other in ["http://evil.example", "null", "http://localhost:9465"] {
            assert_eq!(asked(&gate, get(), &[host, operator, ("origin", other)]), 403, "{other}");
        }
    }

    #[test]
    fn a_replaced_file_counts_at_once_and_one_that_is_wrong_leaves_the_last_tokens() {
        let file = file(&format!("a read {READER}\n"));
        let (gate, _hand) = gate(&file);
        let host = ("host", "127.0.0.1:9465");
        let (reader, operator) = (format!("Bearer {READER}"), format!("Bearer {OPERATOR}"));
        assert_eq!(asked(&gate, Method::GET, &[host, ("authorization", &operator)]), 401);

        std::fs::write(file.path(), format!("b operate {OPERATOR}\n")).unwrap();
        assert_eq!(asked(&gate, Method::GET, &[host, ("authorization", &operator)]), 200);
        assert_eq!(asked(&gate, Method::GET, &[host, ("authorization", &reader)]), 401);

        std::fs::write(file.path(), "b operate\n").unwrap();
        assert_eq!(asked(&gate, Method::GET, &[host, ("authorization", &operator)]), 200);
    }

    #[test]
    fn too_many_requests_are_turned_away_until_a_second_has_passed() {
        let file = file(&format!("a read {READER}\n"));
        let (gate, hand) = gate(&file);
        let all = [("host", "127.0.0.1:9465")];
        let turned_away =
            |gate: &Gate| (0..300).filter(|_| asked(gate, Method::GET, &all) == 429).count();
        assert_eq!(turned_away(&gate), 100);
        hand.advance(std::time::Duration::from_secs(1));
        assert_eq!(turned_away(&gate), 250);
    }

    #[test]
    fn a_wrong_file_is_told_by_its_line_and_without_its_tokens() {
        let long = "s".repeat(40);
        for (text, what) in [
            ("a read\n".to_owned(), ":1: a line is"),
            (format!("a read {long}\nb write {long}\n"), ":2: a role is"),
            ("a read secret\n".to_owned(), ":1: a token has"),
            ("a read sha256:12\n".to_owned(), ":1: `sha256:`"),
            (format!("a read {long}\na operate {long}\n"), ":2: this name"),
            ("# nothing\n".to_owned(), "has no token"),
        ] {
            let file = file(&text);
            let error = Tokens::open(file.path()).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
            assert!(!error.contains("secret") && !error.contains(&long), "{error}");
        }
        assert!(Tokens::open(Path::new("/nowhere/tokens")).is_err());
    }
}
