//! Where a ledger is: a file, or a database.
//!
//! A database is given as a URL: `postgres://user@host:5432/name`, the forms of libpq included
//! (several hosts, a Unix socket as `?host=/run/postgresql`). Beside the parameters of
//! `tokio-postgres` it takes `sslrootcert` (a PEM file that stands in for the system's roots).
//!
//! Nothing is sent in plain text to another machine: off loopback and Unix sockets the connection is
//! made by TLS with a verified certificate or not at all, whatever `sslmode` says; `disable` is an
//! error there. On the same machine plain text is the default, and `require` asks for TLS.
//!
//! The URL may hold a password, so nothing here prints it: what is shown is user, host and name.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// Until a connection stands, if the URL does not say: a database that does not answer so long is
/// as good as gone, and callers wait.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// Where a ledger is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A SQLite file.
    File(PathBuf),
    /// A PostgreSQL database.
    Postgres(Box<Address>),
}

impl Place {
    /// Whether a text names a database rather than a file.
    pub fn is_remote(text: &str) -> bool {
        text.starts_with("postgres:") || text.starts_with("postgresql:")
    }

    /// The file, if it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Postgres(_) => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Postgres(address) => address.fmt(f),
        }
    }
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl From<&PathBuf> for Place {
    fn from(path: &PathBuf) -> Self {
        Self::File(path.clone())
    }
}

impl From<&Place> for Place {
    fn from(place: &Place) -> Self {
        place.clone()
    }
}

impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

/// The address of a database. Printing it shows no password.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    config: Config,
    roots: Option<PathBuf>,
}

/// Why a URL is no address of a database; never quotes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It does not read.
    #[error("is no PostgreSQL address that can be read")]
    Malformed,
    /// It names no host.
    #[error("is a PostgreSQL address without a host")]
    NoHost,
    /// It asks for plain text to another machine.
    #[error(
        "is a PostgreSQL address that would send its contents in plain text to another machine"
    )]
    PlainText,
    /// A value of `sslmode` that nobody knows.
    #[error("is a PostgreSQL address with an `sslmode` that is not known")]
    SslMode,
}

impl AddressError {
    /// What to do.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Malformed | Self::NoHost => {
                "give postgres://USER@HOST:PORT/DATABASE; special characters of a password are \
                 written as %XX"
            }
            Self::PlainText => "remove `sslmode`, or give `sslmode=require`: TLS is used there",
            Self::SslMode => "give `sslmode=require`, or leave it out",
        }
    }
}

impl Address {
    /// Reads a URL. `password` is used where the URL has none.
    ///
    /// # Errors
    ///
    /// See [`AddressError`].
    pub fn parse(url: &str, password: Option<&str>) -> Result<Self, AddressError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut roots = None;
        let mut mode = None;
        let mut rest: Vec<&str> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8();
            match (name, value) {
                ("sslmode", Ok(value)) => mode = Some(value.into_owned()),
                ("sslrootcert", Ok(value)) => roots = Some(PathBuf::from(value.into_owned())),
                _ => rest.push(pair),
            }
        }
        let mut plain = base.to_owned();
        if !rest.is_empty() {
            plain.push('?');
            plain.push_str(&rest.join("&"));
        }
        let mut config = Config::from_str(&plain).map_err(|_| AddressError::Malformed)?;
        if config.get_hosts().is_empty() {
            return Err(AddressError::NoHost);
        }
        let is_local = config.get_hosts().iter().all(is_local)
            && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback);
        let tls = match (mode.as_deref(), is_local) {
            (None | Some("allow" | "disable" | "prefer"), true) => SslMode::Disable,
            (None | Some("allow" | "prefer"), false) => SslMode::Require,
            // There is no weaker check than the whole one.
            (Some("require" | "verify-ca" | "verify-full"), _) => SslMode::Require,
            (Some("disable"), false) => return Err(AddressError::PlainText),
            (Some(_), _) => return Err(AddressError::SslMode),
        };
        config.ssl_mode(tls);
        if config.get_password().is_none()
            && let Some(password) = password
        {
            config.password(password);
        }
        if config.get_application_name().is_none() {
            config.application_name("takeback");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WITHIN);
        }
        Ok(Self { config, roots })
    }

    /// How to connect.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// The roots that stand in for the system's.
    pub(super) fn roots(&self) -> Option<&Path> {
        self.roots.as_deref()
    }

    /// Where its server listens, if that is one place on this machine and is spoken to in plain text.
    pub fn endpoint(&self) -> Option<Endpoint> {
        let [host] = self.config.get_hosts() else { return None };
        if self.is_encrypted() || !self.config.get_hostaddrs().is_empty() {
            return None;
        }
        let port = self.config.get_ports().first().copied().unwrap_or(PORT);
        Some(match host {
            Host::Tcp(name) => Endpoint::Tcp(name.clone(), port),
            Host::Unix(folder) => Endpoint::Unix(folder.join(format!(".s.PGSQL.{port}"))),
        })
    }

    /// The same database as a client finds it behind a Unix socket in `folder`, and the password, which
    /// is not in the URL.
    pub fn behind(&self, folder: &Path) -> (String, Option<Vec<u8>>) {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let user = self.config.get_user().map(|user| encoded(user) + "@").unwrap_or_default();
        let name = self.config.get_dbname().map(encoded).unwrap_or_default();
        let host = encoded(&folder.display().to_string());
        let url = format!("postgres://{user}/{name}?host={host}&port={PORT}");
        (url, self.config.get_password().map(<[u8]>::to_vec))
    }

    /// Whether connections are made by TLS.
    pub fn is_encrypted(&self) -> bool {
        self.config.get_ssl_mode() != SslMode::Disable
    }
}

/// The port of a server, if its address does not say.
const PORT: u16 = 5432;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host and its port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            let is_loopback = name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
            is_loopback || name == "localhost"
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        if let Some(user) = self.config.get_user() {
            write!(f, "{user}@")?;
        }
        for (index, host) in self.config.get_hosts().iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match host {
                Host::Tcp(name) if name.contains(':') => write!(f, "[{name}]")?,
                Host::Tcp(name) => f.write_str(name)?,
                Host::Unix(path) => path.display().fmt(f)?,
            }
            let ports = self.config.get_ports();
            if let Some(port) = ports.get(index).or_else(|| ports.first()) {
                write!(f, ":{port}")?;
            }
        }
        if let Some(name) = self.config.get_dbname() {
            write!(f, "/{name}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_never_leaves_the_machine() {
        let table = [
            ("postgres://u@db.example/l", Ok(SslMode::Require)),
            ("postgres://u@db.example/l?sslmode=prefer", Ok(SslMode::Require)),
            ("postgres://u@db.example/l?sslmode=allow", Ok(SslMode::Require)),
            ("postgres://u@db.example/l?sslmode=verify-full", Ok(SslMode::Require)),
            ("postgres://u@db.example/l?sslmode=disable", Err(AddressError::PlainText)),
            ("postgres://u@127.0.0.1,db.example/l?sslmode=disable", Err(AddressError::PlainText)),
            ("postgres://u@10.0.0.1/l", Ok(SslMode::Require)),
            ("postgres://u@/l?host=/run/postgresql&hostaddr=10.0.0.1", Ok(SslMode::Require)),
            ("postgres://u@localhost/l", Ok(SslMode::Disable)),
            ("postgres://u@127.0.0.1:5433/l?sslmode=prefer", Ok(SslMode::Disable)),
            ("postgres://u@[::1]/l", Ok(SslMode::Disable)),
            ("postgres://u@localhost/l?sslmode=require", Ok(SslMode::Require)),
            ("postgresql://u@/l?host=/run/postgresql", Ok(SslMode::Disable)),
            ("postgres://u@%2Frun%2Fpostgresql/l", Ok(SslMode::Disable)),
            ("postgres://u@db.example/l?sslmode=always", Err(AddressError::SslMode)),
            ("postgres://u@db.example/l?nonsense=1", Err(AddressError::Malformed)),
            ("postgres:///l", Err(AddressError::NoHost)),
        ];
        for (url, expected) in table {
            let mode = Address::parse(url, None).map(|a| a.config().get_ssl_mode());
            assert_eq!(mode, expected, "{url}");
        }
    }

    #[test]
    fn a_server_on_this_machine_has_a_place_and_can_be_found_behind_another() {
        let table = [
            ("postgres://u@127.0.0.1:5433/l", Some(Endpoint::Tcp("127.0.0.1".to_owned(), 5433))),
            ("postgres://u@localhost/l", Some(Endpoint::Tcp("localhost".to_owned(), 5432))),
            (
                "postgres://u@/l?host=/run/pg&port=5433",
                Some(Endpoint::Unix(PathBuf::from("/run/pg/.s.PGSQL.5433"))),
            ),
            ("postgres://u@localhost/l?sslmode=require", None),
            ("postgres://u@db.example/l", None),
            ("postgres://u@localhost,127.0.0.1/l", None),
        ];
        for (url, expected) in table {
            assert_eq!(Address::parse(url, None).unwrap().endpoint(), expected, "{url}");
        }

        let address = Address::parse("postgres://a%40b:s3cret@localhost/l", None).unwrap();
        let (url, password) = address.behind(Path::new("/tmp/a b"));
        assert_eq!(password.as_deref(), Some(&b"s3cret"[..]));
        let behind = Address::parse(&url, None).unwrap();
        let endpoint = Endpoint::Unix(PathBuf::from("/tmp/a b/.s.PGSQL.5432"));
        assert_eq!(behind.endpoint(), Some(endpoint));
        assert_eq!(
            (behind.config.get_user(), behind.config.get_dbname()),
            (Some("a@b"), Some("l"))
        );
    }

    #[test]
    fn a_password_is_taken_from_the_url_first_and_printed_never() {
        let url = "postgres://ann:s3cret@db.example:5433/ledger?sslrootcert=%2Fetc%2Fca.pem";
        let address = Address::parse(url, Some("other")).unwrap();
        assert_eq!(address.config().get_password(), Some(&b"s3cret"[..]));
        assert_eq!(address.roots(), Some(Path::new("/etc/ca.pem")));
        let place = Place::Postgres(Box::new(address));
        for shown in [place.to_string(), format!("{place:?}")] {
            assert!(shown.contains("postgres://ann@db.example:5433/ledger"), "{shown}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }

        let bare = Address::parse("postgres://ann@db.example/ledger", Some("other")).unwrap();
        assert_eq!(bare.config().get_password(), Some(&b"other"[..]));
    }
}
