//! Certificates, keys and credentials that change: one task that reads them again.
//!
//! What is wrong with new content is told once, in the log and in `takeback_file_reloads_total`; what
//! was in force stays, and nothing becomes unready. A certificate that is about to expire is seen by
//! `takeback_certificate_expiry_timestamp_seconds`.
//!
//! | event in the log | level | when |
//! |---|---|---|
//! | `file_applied` | info | changed content is in force |
//! | `file_rejected` | error | changed content cannot be used; the last good one stays |

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::config::secure::{Loaded, read_lines};
use crate::metrics::{Metrics, ServedFile};
use crate::reread::{Contents, Reread, Seen};
use crate::tasks::Tasks;
use crate::tls::{ClientTls, ServerTls};

use super::keys::Fetch;

/// How often the files are read. They are few, and in memory after the first time.
const POLL: Duration = Duration::from_secs(1);

/// What the task works on.
pub(super) struct Files {
    files: Vec<(ServedFile, Reread)>,
    fetch: Option<Fetch>,
    server: Option<Arc<ServerTls>>,
    admin: Option<Arc<ServerTls>>,
    upstream: Option<Arc<ClientTls>>,
    metrics: Metrics,
}

/// A watch of what was read at the start.
fn watch<T>(
    file: ServedFile,
    loaded: &Loaded<T>,
    apply: impl FnMut(&Contents) -> Result<(), String> + Send + 'static,
) -> (ServedFile, Reread) {
    (file, Reread::new(file.as_str(), loaded.paths.clone(), &loaded.contents, apply))
}

/// The files that a configuration names.
pub(super) fn watched(config: &Config, metrics: &Metrics) -> Files {
    let mut files = Vec::new();
    if let Some(loaded) = &config.tls {
        let tls = Arc::clone(&loaded.value);
        let apply = move |contents: &_| tls.replace(contents).map_err(|error| error.to_string());
        files.push(watch(ServedFile::ServerCertificate, loaded, apply));
    }
    let admin = config.admin_network.as_ref().and_then(|network| network.tls.as_ref());
    if let Some(loaded) = admin {
        let tls = Arc::clone(&loaded.value);
        let apply = move |contents: &_| tls.replace(contents).map_err(|error| error.to_string());
        files.push(watch(ServedFile::AdminCertificate, loaded, apply));
    }
    if let Some(loaded) = config.upstream.tls.as_ref().filter(|loaded| !loaded.paths.is_empty()) {
        let tls = Arc::clone(&loaded.value);
        let apply = move |contents: &_| tls.replace(contents).map_err(|error| error.to_string());
        files.push(watch(ServedFile::UpstreamCertificate, loaded, apply));
    }
    if let Some(loaded) = &config.upstream.headers {
        let injected = loaded.value.clone();
        let apply = move |contents: &_| {
            let lines = read_lines(contents).map_err(|errors| {
                let first = errors.first();
                first.map_or_else(String::new, |e| format!("line {}: {}", e.line, e.what))
            })?;
            injected.replace(lines);
            Ok(())
        };
        files.push(watch(ServedFile::UpstreamHeaders, loaded, apply));
    }
    if let Some(loaded) = &config.principal.keys_file {
        let jwt = Arc::clone(&loaded.value);
        let apply =
            move |contents: &Contents| jwt.replace(contents.at(0).1).map_err(|e| e.to_string());
        files.push(watch(ServedFile::TokenKeys, loaded, apply));
    }
    let fetch = config.principal.keys_url.clone().zip(config.principal.sources.jwt.clone());
    let fetch = fetch.and_then(|(url, jwt)| {
        let counters = counters(metrics, ServedFile::TokenKeys)?.clone();
        Some(Fetch { jwt, url, counters })
    });
    let files = Files {
        files,
        fetch,
        server: config.tls.as_ref().map(|loaded| Arc::clone(&loaded.value)),
        admin: admin.map(|loaded| Arc::clone(&loaded.value)),
        upstream: config.upstream.tls.as_ref().map(|loaded| Arc::clone(&loaded.value)),
        metrics: metrics.clone(),
    };
    files.show();
    files
}

fn counters(metrics: &Metrics, file: ServedFile) -> Option<&[metrics::Counter; 2]> {
    let index = ServedFile::ALL.iter().position(|known| *known == file)?;
    metrics.common().file_reloads.get(index)
}

impl Files {
    /// Runs until its task is dropped; ends at once if there are no files.
    pub(super) async fn run(mut self, tasks: Tasks) {
        if let Some(fetch) = self.fetch.take() {
            drop(tasks.spawn_background("token keys", fetch.run(tasks.clone())));
        }
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.files.is_empty() {
            ticks.tick().await;
            let reading = tokio::task::spawn_blocking(move || {
                self.poll();
                self
            });
            self = match reading.await {
                Ok(files) => files,
                Err(error) => {
                    tracing::error!(%error, "reading files failed; they are read no more");
                    return;
                }
            };
        }
    }

    fn poll(&mut self) {
        let mut has_changed = false;
        for (file, reread) in &mut self.files {
            let Some([applied, rejected]) = counters(&self.metrics, *file) else { continue };
            match reread.poll() {
                Seen::Applied => {
                    applied.increment(1);
                    has_changed = true;
                    tracing::info!(event = "file_applied", file = reread.name, "read again");
                }
                Seen::Rejected(reason) => {
                    rejected.increment(1);
                    tracing::error!(
                        event = "file_rejected",
                        file = reread.name,
                        reason,
                        "the new content cannot be used; the last good one stays in force"
                    );
                }
                Seen::Unchanged => {}
            }
        }
        if has_changed {
            self.show();
        }
    }

    fn show(&self) {
        let [server, admin, upstream] = &self.metrics.common().certificate_expiry;
        let seconds = |at: u64| f64::from(u32::try_from(at).unwrap_or(u32::MAX));
        server.set(seconds(self.server.as_ref().map_or(0, |tls| tls.not_after())));
        admin.set(seconds(self.admin.as_ref().map_or(0, |tls| tls.not_after())));
        upstream.set(seconds(self.upstream.as_ref().map_or(0, |tls| tls.not_after())));
    }
}
