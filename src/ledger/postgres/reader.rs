//! Reading beside the writer: lookups of calls, answers, lists and counts, on a connection of its own.
//!
//! Looks that come while others are on their way are asked together, in one pipe. A connection that
//! broke is made again by the next who asks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::look::{self, Finder};
use super::session::{Connector, Fault, STATEMENT_WITHIN, Session};
use super::{later, rows, schema, verify};
use crate::contract::key::EntryId;
use crate::ledger::chain::verify::Verifier;
use crate::ledger::desk::command::{Reply, tell};
use crate::ledger::place::Address;
use crate::ledger::{
    Broken, Counts, Filter, Head, Keys, LedgerError, Look, OpenError, Priors, Reason, Record,
    Shown, State, Stored, Verified,
};

/// Looks in one pipe: as many as callers there may be at once.
const LOOKS: usize = 256;

type Reading = Pin<Box<dyn Future<Output = Result<(), Fault>> + Send>>;

/// What is done with an answer.
pub(super) type Told<T> = Box<dyn FnOnce(Result<T, LedgerError>) + Send>;

/// What is asked of a reader.
pub(super) enum Ask {
    Look(Box<Look>, Told<Priors>),
    Read(Box<dyn FnOnce(Arc<Session>) -> Reading + Send>),
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ask")
    }
}

impl Ask {
    /// A read whose answer goes to `reply`.
    pub(super) fn read<T, F>(
        reply: Reply<T>,
        read: impl FnOnce(Arc<Session>) -> F + Send + 'static,
    ) -> Self
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        Self::Read(Box::new(move |session| {
            Box::pin(async move {
                match read(session).await {
                    Ok(value) => {
                        tell(reply, Ok(value));
                        Ok(())
                    }
                    Err(fault) => {
                        let failure = fault.into_failure();
                        tell(reply, Err(LedgerError::Unavailable(failure.reason)));
                        Err(Fault::Down(failure))
                    }
                }
            })
        }))
    }

    /// The recorded answer of an entry, and what its report says.
    pub(super) fn answer(entry: EntryId, reply: Reply<Option<Stored>>) -> Self {
        Self::read(reply, move |session| async move {
            let Some(record) = rows::record_of(&session, entry).await? else {
                return Ok(None);
            };
            if record.prior.state == State::Begun {
                return Ok(None);
            }
            Ok(Some(Stored { answer: rows::answer(&session, entry).await?, record }))
        })
    }
}

/// What a connection that reads prepares.
pub(super) fn statements() -> Vec<&'static str> {
    [later::STATEMENTS, look::STATEMENTS, rows::STATEMENTS].concat()
}

/// Answers until nobody can ask any more.
pub(super) async fn run(
    connector: Connector,
    finder: Finder,
    mut asks: mpsc::UnboundedReceiver<Ask>,
) {
    let statements = statements();
    let mut session: Option<Arc<Session>> = None;
    let mut taken = Vec::new();
    while asks.recv_many(&mut taken, LOOKS).await > 0 {
        session = session.filter(|session| !session.is_closed());
        let connected = match session.take() {
            Some(session) => Ok(session),
            None => connector.connect(&statements).await.map(Arc::new),
        };
        match connected {
            Ok(connected) => {
                if answer_all(&connected, &finder, std::mem::take(&mut taken)).await {
                    session = Some(connected);
                }
            }
            Err(fault) => {
                let failure = fault.into_failure();
                tracing::debug!(
                    reason = failure.reason.as_str(),
                    detail = failure.detail,
                    "the ledger cannot be read"
                );
                // A read that is dropped tells its asker so.
                for ask in taken.drain(..) {
                    if let Ask::Look(_, told) = ask {
                        told(Err(LedgerError::Unavailable(failure.reason)));
                    }
                }
            }
        }
    }
}

/// Answers what was asked; whether the connection is still of use.
async fn answer_all(session: &Arc<Session>, finder: &Finder, asks: Vec<Ask>) -> bool {
    let (mut looks, mut replies, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for ask in asks {
        match ask {
            Ask::Look(look, told) => {
                looks.push(look);
                replies.push(told);
            }
            Ask::Read(read) => reads.push(read),
        }
    }
    let mut is_fine = true;
    if !looks.is_empty() {
        match look::look(session, finder, looks.iter().map(|look| &**look).collect()).await {
            Ok(found) => {
                for (told, priors) in replies.into_iter().zip(found) {
                    told(Ok(priors));
                }
            }
            Err(fault) => {
                is_fine = false;
                let failure = fault.into_failure();
                tracing::warn!(
                    reason = failure.reason.as_str(),
                    detail = failure.detail,
                    "a look into the ledger failed"
                );
                for told in replies {
                    told(Err(LedgerError::Unavailable(failure.reason)));
                }
            }
        }
    }
    for read in reads {
        if let Err(fault) = read(Arc::clone(session)).await {
            is_fine = false;
            tracing::debug!(detail = fault.into_failure().detail, "a read of the ledger failed");
        }
    }
    is_fine
}

/// Asks a reader and waits for the answer.
pub(super) async fn ask<T: Send + 'static, F>(
    asks: &mpsc::UnboundedSender<Ask>,
    read: impl FnOnce(Arc<Session>) -> F + Send + 'static,
) -> Result<T, LedgerError>
where
    F: Future<Output = Result<T, Fault>> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    let closed = LedgerError::Unavailable(Reason::Closed);
    asks.send(Ask::read(reply, read)).map_err(|_| closed)?;
    // The connect, and a statement or two.
    match tokio::time::timeout(STATEMENT_WITHIN * 3, answer).await {
        Ok(answer) => answer.unwrap_or(Err(LedgerError::Unavailable(Reason::Unreachable))),
        Err(_) => Err(LedgerError::Unavailable(Reason::Stalled)),
    }
}

/// A ledger in a database, opened for reading. Its calls block, on whatever thread; the connection
/// lives on a thread of its own.
#[derive(Debug)]
pub(in crate::ledger) struct DatabaseReader {
    asks: mpsc::UnboundedSender<Ask>,
}

impl DatabaseReader {
    /// Connects and checks the version.
    pub(in crate::ledger) fn open(address: &Address) -> Result<Self, OpenError> {
        Self::connect(address, async |session| schema::check(session).await)
            .map(|(opened, ())| opened)
    }

    /// The newest time in the history, in milliseconds since 1970, or 0; of an older version too.
    pub(in crate::ledger) fn newest_ms(address: &Address) -> Result<i64, OpenError> {
        Self::connect(address, async |session| schema::newest_ms(session).await).map(|(_, ms)| ms)
    }

    /// Connects, does one thing, and stays to be asked.
    fn connect<T: Send + 'static>(
        address: &Address,
        first: impl AsyncFnOnce(&Session) -> Result<T, OpenError> + Send + 'static,
    ) -> Result<(Self, T), OpenError> {
        let connector = Connector::new(address)?;
        let (asks, asked) = mpsc::unbounded_channel();
        let (opened, is_opened) = std::sync::mpsc::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(opened.send(Err(OpenError::Io(error)))),
            };
            runtime.block_on(async move {
                let checked = async {
                    let session = connector.connect(&[]).await?;
                    first(&session).await
                };
                let checked = checked.await;
                let is_fine = checked.is_ok();
                if opened.send(checked).is_ok() && is_fine {
                    run(connector, Finder::new(&[0; 32]), asked).await;
                }
            });
        };
        std::thread::Builder::new()
            .name("ledger reader".to_owned())
            .spawn(serve)
            .map_err(OpenError::Io)?;
        let gone = || OpenError::Unusable(Reason::Failed);
        is_opened.recv().map_err(|_| gone())?.map(|value| (Self { asks }, value))
    }

    pub(in crate::ledger) fn list(&self, filter: &Filter) -> Result<Vec<Record>, LedgerError> {
        let filter = filter.clone();
        self.ask(|session| async move { rows::list(&session, &filter).await })
    }

    pub(in crate::ledger) fn show(&self, entry: EntryId) -> Result<Option<Shown>, LedgerError> {
        self.ask(move |session| async move { rows::show(&session, entry).await })
    }

    pub(in crate::ledger) fn unknowns(&self, limit: usize) -> Result<Vec<Record>, LedgerError> {
        self.ask(move |session| async move { rows::unknowns(&session, limit).await })
    }

    pub(in crate::ledger) fn verify(
        &self,
        keys: &Keys,
        heads: &[Head],
    ) -> Result<Result<Verified, Broken>, LedgerError> {
        self.follow(keys, heads, |verifier, stray| verifier.end(stray))
    }

    pub(in crate::ledger) fn breaks(
        &self,
        keys: &Keys,
    ) -> Result<Result<Vec<Broken>, Broken>, LedgerError> {
        self.follow(keys, &[], |verifier, stray| Ok(verifier.end_with_all(stray).1))
    }

    /// Follows the chains in one snapshot.
    fn follow<T>(
        &self,
        keys: &Keys,
        heads: &[Head],
        end: impl FnOnce(Verifier<'_>, Option<EntryId>) -> Result<T, Broken>,
    ) -> Result<Result<T, Broken>, LedgerError> {
        let store = self.ask(|session| async move {
            session.run(verify::BEGIN).await?;
            schema::secret(&session, "store").await
        })?;
        let followed = self.follow_all(Verifier::new(keys, &store, heads), end);
        self.ask(|session| async move { session.run("COMMIT").await })?;
        followed
    }

    /// Page by page, each with its own bound: the whole may take minutes.
    fn follow_all<T>(
        &self,
        mut verifier: Verifier<'_>,
        end: impl FnOnce(Verifier<'_>, Option<EntryId>) -> Result<T, Broken>,
    ) -> Result<Result<T, Broken>, LedgerError> {
        let mut seq = i64::MIN;
        loop {
            let page = self.ask(move |session| async move { verify::page(&session, seq).await })?;
            for line in &page {
                if let Err(broken) = verifier.take(line) {
                    return Ok(Err(broken));
                }
            }
            match page.last() {
                Some(line) => seq = line.seq,
                None => break,
            }
        }
        let stray = self.ask(|session| async move { verify::stray(&session).await })?;
        Ok(end(verifier, stray.map(rows::entry_id)))
    }

    pub(in crate::ledger) fn counts(&self) -> Result<Counts, LedgerError> {
        self.ask(|session| async move { rows::counts(&session).await })
    }

    fn ask<T: Send + 'static, F>(
        &self,
        read: impl FnOnce(Arc<Session>) -> F + Send + 'static,
    ) -> Result<T, LedgerError>
    where
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let (reply, answer) = std::sync::mpsc::channel();
        let (told, tells) = oneshot::channel();
        let closed = LedgerError::Unavailable(Reason::Closed);
        let relay = move |session: Arc<Session>| {
            let reading = read(session);
            async move {
                let value = reading.await;
                match value {
                    Ok(value) => {
                        // Nobody waits if the asker gave up.
                        drop(reply.send(value));
                        Ok(())
                    }
                    Err(fault) => Err(fault),
                }
            }
        };
        self.asks.send(Ask::read(told, relay)).map_err(|_| closed)?;
        drop(tells);
        answer
            .recv_timeout(STATEMENT_WITHIN * 3)
            .map_err(|_| LedgerError::Unavailable(Reason::Unreachable))
    }
}
