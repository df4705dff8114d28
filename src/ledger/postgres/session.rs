//! One connection to the database: how it is made, how statements go over it, how its errors read.
//!
//! Statements are prepared once per connection, and those that need nothing of each other are
//! [piped](Pipe): sent in order without waiting for each answer. Every wait has a bound, here and on
//! the server ([`SETTINGS`]), so that a database that stands still is told from one that is slow.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::ledger::Reason;
use crate::ledger::desk::command::Failure;
use crate::ledger::place::Address;
use crate::tasks::Tasks;

/// The longest that one statement, or the pipe it is in, is waited for. Below the desk's bound, so
/// that a caller still hears why.
pub(super) const STATEMENT_WITHIN: Duration = Duration::from_secs(3);

/// The longest that a step of an upgrade may take: an index over a large table, once.
const LONG_WITHIN: Duration = Duration::from_secs(600);

/// What every connection asks of the server: statements and abandoned transactions end there too,
/// so that a sidecar that stands still holds no locks against the others for long.
const SETTINGS: &str = "SET statement_timeout = 3000; \
    SET idle_in_transaction_session_timeout = 5000; \
    SET client_min_messages = warning";

/// A connection with its prepared statements.
pub(super) struct Session {
    client: Client,
    statements: HashMap<&'static str, Statement>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

/// How connections to one database are made.
#[derive(Clone)]
pub(super) struct Connector {
    address: Arc<Address>,
    tls: MakeRustlsConnect,
    tasks: Tasks,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Connector").field(&self.address).finish()
    }
}

impl Connector {
    /// Reads the roots once.
    ///
    /// # Errors
    ///
    /// What is wrong with the file of roots.
    pub(super) fn new(address: &Address) -> Result<Self, Fault> {
        let tls = MakeRustlsConnect::new(client_config(address)?);
        Ok(Self { address: Arc::new(address.clone()), tls, tasks: Tasks::new() })
    }

    /// Connects and prepares statements. The connection is driven on this runtime.
    pub(super) async fn connect(&self, statements: &[&'static str]) -> Result<Session, Fault> {
        let within = self.address.config().get_connect_timeout().copied();
        let within = within.unwrap_or(STATEMENT_WITHIN).min(STATEMENT_WITHIN);
        let connecting = self.address.config().connect(self.tls.clone());
        // Its own bound is on the socket alone; a server that stands still accepts and says nothing.
        let connected = tokio::time::timeout(within, connecting).await;
        let (client, connection) =
            connected.map_err(|_| Fault::stalled())?.map_err(Fault::connect)?;
        drop(self.tasks.spawn_background("database connection", async move {
            if let Err(error) = connection.await {
                // Whoever waits for a statement is told, and says it.
                tracing::debug!(error = words(&error), "a connection to the database ended");
            }
        }));
        let mut session = Session { client, statements: HashMap::new() };
        bounded(session.client.batch_execute(SETTINGS)).await?;
        for sql in statements {
            let statement = bounded(session.client.prepare(sql)).await?;
            session.statements.insert(sql, statement);
        }
        Ok(session)
    }
}

fn client_config(address: &Address) -> Result<ClientConfig, Fault> {
    let mut roots = RootCertStore::empty();
    if address.is_encrypted() {
        match address.roots() {
            Some(path) => {
                let unreadable =
                    || Fault::Refused("the file of `sslrootcert` holds no certificates".to_owned());
                let certificates = CertificateDer::pem_file_iter(path).map_err(|_| unreadable())?;
                for certificate in certificates {
                    roots.add(certificate.map_err(|_| unreadable())?).map_err(|_| unreadable())?;
                }
                if roots.is_empty() {
                    return Err(unreadable());
                }
            }
            None => {
                // What does not parse is left out, as browsers do; no root at all fails every check.
                let found = rustls_native_certs::load_native_certs();
                let (_added, _ignored) = roots.add_parsable_certificates(found.certs);
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| Fault::Refused("no TLS version can be spoken".to_owned()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

impl Session {
    /// Whether the connection is known to be gone.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs statements without parameters; for the schema.
    pub(super) async fn run(&self, sql: &str) -> Result<(), Fault> {
        bounded(self.client.batch_execute(sql)).await
    }

    /// As [`run`](Self::run), within a transaction, for what may take minutes.
    pub(super) async fn run_long(&self, sql: &str) -> Result<(), Fault> {
        self.run("SET LOCAL statement_timeout = 600000").await?;
        let running = self.client.batch_execute(sql);
        let done = tokio::time::timeout(LONG_WITHIN, running).await;
        done.map_err(|_| Fault::stalled())?.map_err(Fault::from)?;
        self.run("SET LOCAL statement_timeout = 3000").await
    }

    /// Runs one statement; prepared if it was named at the connect.
    pub(super) async fn query(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Fault> {
        match self.statements.get(sql) {
            Some(statement) => bounded(self.client.query(statement, params)).await,
            None => bounded(self.client.query(sql, params)).await,
        }
    }

    /// A pipe over this connection.
    pub(super) fn pipe(&self) -> Pipe<'_> {
        Pipe { session: self, asked: Vec::new() }
    }
}

/// A parameter of a piped statement.
pub(super) type Param = Box<dyn ToSql + Sync + Send>;

type Asked<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, Error>> + Send + 'a>>;

/// Statements that are sent in order, each without waiting for the one before.
pub(super) struct Pipe<'a> {
    session: &'a Session,
    asked: Vec<Asked<'a>>,
}

/// What became of a pipe: each statement's rows.
pub(super) type Answers = Vec<Result<Vec<Row>, Error>>;

impl<'a> Pipe<'a> {
    /// Adds a statement that was prepared; its place in the answers.
    pub(super) fn add(&mut self, sql: &'static str, params: Vec<Param>) -> usize {
        let client = &self.session.client;
        let statement = self.session.statements.get(sql).cloned();
        self.asked.push(Box::pin(async move {
            let params: Vec<&(dyn ToSql + Sync)> =
                params.iter().map(|param| -> &(dyn ToSql + Sync) { &**param }).collect();
            match statement {
                Some(statement) => client.query(&statement, &params).await,
                None => client.query(sql, &params).await,
            }
        }));
        self.asked.len() - 1
    }

    /// Whether nothing was added.
    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Sends all and waits for all, in one bound.
    ///
    /// # Errors
    ///
    /// If the bound is passed: nothing is known of any of them.
    pub(super) async fn run(self) -> Result<Answers, Fault> {
        let mut asked = self.asked;
        let mut answers: Vec<Option<Result<Vec<Row>, Error>>> =
            asked.iter().map(|_| None).collect();
        let all = std::future::poll_fn(|cx| {
            let mut is_pending = false;
            // A statement is sent by its first poll: in this order.
            for (future, answer) in asked.iter_mut().zip(answers.iter_mut()) {
                if answer.is_none() {
                    match future.as_mut().poll(cx) {
                        Poll::Pending => is_pending = true,
                        Poll::Ready(done) => *answer = Some(done),
                    }
                }
            }
            if is_pending { Poll::Pending } else { Poll::Ready(()) }
        });
        tokio::time::timeout(STATEMENT_WITHIN, all).await.map_err(|_| Fault::stalled())?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// As [`run`](Self::run); every statement must succeed.
    pub(super) async fn run_all(self) -> Result<Vec<Vec<Row>>, Fault> {
        whole(self.run().await?)
    }
}

/// The rows of a pipe whose every statement succeeded; else the first error that says why.
pub(super) fn whole(answers: Answers) -> Result<Vec<Vec<Row>>, Fault> {
    let mut rows = Vec::with_capacity(answers.len());
    for answer in answers {
        rows.push(answer.map_err(Fault::from)?);
    }
    Ok(rows)
}

async fn bounded<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Fault> {
    let done = tokio::time::timeout(STATEMENT_WITHIN, work).await;
    done.map_err(|_| Fault::stalled())?.map_err(Fault::from)
}

/// What went wrong at the database.
#[derive(Debug)]
pub(super) enum Fault {
    /// The connection or the server is of no use; others will be tried.
    Down(Failure),
    /// Two transactions met: the same again may succeed.
    Met,
    /// The server refused this statement; it would refuse it again.
    Refused(String),
}

impl Fault {
    pub(super) fn stalled() -> Self {
        Self::Down(Failure::new(Reason::Stalled, "the database did not answer in time"))
    }

    fn connect(error: Error) -> Self {
        match error.code() {
            Some(code) if is_lasting(code) => Self::Refused(words(&error)),
            Some(_) => Self::from(error),
            None if is_distrust(&error) => Self::Refused(words(&error)),
            None => Self::Down(Failure::new(Reason::Unreachable, &words(&error))),
        }
    }

    /// As a failure of the store.
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::Down(failure) => failure,
            Self::Met => Failure::new(Reason::Failed, "it met others again and again"),
            Self::Refused(detail) => Failure::new(Reason::Failed, &detail),
        }
    }
}

/// Whether a refused connection will be refused again: credentials, names, rights.
fn is_lasting(code: &SqlState) -> bool {
    let code = code.code();
    code.starts_with("28") || code == "3D000" || code == "42501"
}

/// Whether TLS was refused on our side: the certificate is not one that we trust.
fn is_distrust(error: &Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>()
            && let Some(inner) = error.get_ref()
        {
            if inner.is::<rustls::Error>() {
                return true;
            }
            cause = inner.source();
            continue;
        }
        if error.is::<rustls::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let Some(code) = error.code() else {
            let down = error.is_closed() || std::error::Error::source(&error).is_some();
            let text = words(&error);
            return if down {
                Self::Down(Failure::new(Reason::Unreachable, &text))
            } else {
                Self::Refused(text)
            };
        };
        let reason = match code.code() {
            "40001" | "40P01" => return Self::Met,
            // The disk; memory; connections.
            "53100" => Reason::Full,
            "57014" | "55P03" | "25P03" | "57P05" => Reason::Stalled,
            "XX001" | "XX002" => Reason::Corrupt,
            // A server that follows another: the one that leads is elsewhere.
            "25006" => Reason::Unreachable,
            code if code.starts_with("58") => Reason::Io,
            code if code.starts_with("53") => Reason::Failed,
            code if code.starts_with("08") || code.starts_with("57P") => Reason::Unreachable,
            // The statement before it in the pipe says why; alone it is a defect.
            _ => return Self::Refused(words(&error)),
        };
        Self::Down(Failure::new(reason, &words(&error)))
    }
}

/// An error in words that hold no value of a row: the server's own detail does.
pub(super) fn words(error: &Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("{} ({})", error.message(), error.code().code()),
        None => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(error);
            while let Some(error) = cause {
                text.push_str(": ");
                text.push_str(&error.to_string());
                cause = error.source();
            }
            text
        }
    }
}
