//! Fetches the keys of the tokens' issuer: at the start, every five minutes, and when a token names
//! one that is not known (at most twice a minute: `principal::jwt`).
//!
//! A fetch that fails leaves the last good keys in force; until the first one succeeds no token is
//! valid. It is told in the log (`file_applied`, `file_rejected`, for `token_keys`) and counted.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode, header};

use crate::call::payload::{self, Body, Budget};
use crate::config::callers::KeysUrl;
use crate::principal::jwt::Jwt;
use crate::tasks::Tasks;
use crate::upstream::{self, Clocks, Sent, Upstream};

/// How often keys are fetched.
const EVERY: Duration = Duration::from_secs(300);
/// How soon after a fetch that failed.
const AGAIN: Duration = Duration::from_secs(5);
/// An issuer's answer has this long.
const CONNECT: Duration = Duration::from_secs(3);
const TOTAL: Duration = Duration::from_secs(10);
/// The longest set of keys, in bytes.
const MAX_SET: usize = 1024 * 1024;

/// What the task works on.
pub(super) struct Fetch {
    pub(super) jwt: Arc<Jwt>,
    pub(super) url: KeysUrl,
    /// Applied and rejected fetches.
    pub(super) counters: [metrics::Counter; 2],
}

impl Fetch {
    /// Runs until its task is dropped.
    pub(super) async fn run(self, tasks: Tasks) {
        let config = upstream::Config {
            protocol: self.url.protocol.clone(),
            connections: 1,
            ..upstream::Config::new(self.url.authority.clone())
        };
        let upstream = Upstream::new(config, tasks);
        let [applied, rejected] = &self.counters;
        let mut was_told = false;
        loop {
            let fetched = self.fetch(&upstream).await;
            let rest = match fetched {
                Ok(()) => {
                    applied.increment(1);
                    if was_told {
                        tracing::info!(event = "file_applied", file = "token_keys", "fetched");
                    }
                    was_told = false;
                    EVERY
                }
                Err(reason) => {
                    rejected.increment(1);
                    if !was_told {
                        tracing::error!(
                            event = "file_rejected",
                            file = "token_keys",
                            reason,
                            "the issuer's keys could not be fetched; the last good ones count"
                        );
                    }
                    was_told = true;
                    AGAIN
                }
            };
            // Losing either loses nothing: the keys are fetched after both.
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = self.jwt.wanted() => {}
            }
        }
    }

    async fn fetch(&self, upstream: &Upstream) -> Result<(), String> {
        let request = Request::builder()
            .method(Method::GET)
            .uri(&self.url.path)
            .header(header::HOST, &self.url.host)
            .header(header::ACCEPT, "application/jwk-set+json, application/json")
            .header(header::USER_AGENT, concat!("takeback/", env!("CARGO_PKG_VERSION")))
            .body(Body::empty())
            .map_err(|error| error.to_string())?;
        let clocks =
            Clocks { connect: CONNECT, head: TOTAL, idle: Some(TOTAL), total: Some(TOTAL) };
        let answer = match upstream.send(request, &clocks).await {
            Sent::Answer(answer) => answer,
            Sent::Lost(reason) => return Err(reason.to_string()),
            Sent::NotSent(reason) => return Err(reason.to_string()),
        };
        if answer.status() != StatusCode::OK {
            return Err(format!("the issuer answered with {}", answer.status()));
        }
        let budget = Budget::new(MAX_SET);
        let collected = payload::collect(answer.into_body(), MAX_SET, &budget, TOTAL).await;
        let set = collected.map_err(|error| error.to_string())?;
        self.jwt.replace(set.bytes()).map_err(|error| error.to_string())
    }
}
