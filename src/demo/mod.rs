//! `takeback demo`: an example gateway, the sidecar before it, and a guided run of every class.
//!
//! Everything is real but the gateway's purpose: [`gateway`] listens on a port, the sidecar is the
//! one that `takeback run` starts, with its own ports, threads and ledger, and the guide is an
//! agent that talks to both over sockets. The guide checks each step against its text, so a run
//! that ends well has shown what it says.
//!
//! One folder in the system's temporary directory holds policies, ledger and admin socket,
//! readable by this user only; it is removed at the end. The policies are those of
//! `policies/github-mini`, built in, so that the demo runs anywhere. Nothing is configured from
//! the environment. What can go wrong: no loopback port, no writable temporary directory, or a
//! step that does something else than it says, which is a defect.

mod client;
mod folder;
pub mod gateway;
mod guide;
mod mcp;
mod rest;
mod screen;
mod tools;
mod world;

use std::io::{self, Write};
use std::net::SocketAddr;

use crate::app::{self, AppError, Signals};
use crate::config::{Config, ConfigErrors, Sources};
use crate::tasks::Tasks;

use client::Client;
use folder::Folder;
use gateway::{Gateway, MCP_PATH};
use guide::{Failed, Guide};
use screen::Screen;

/// What the demo does after its guided run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It ends.
    Exit,
    /// It stays up to be tried, until SIGINT or SIGTERM.
    Stay,
}

/// Why the demo ended early.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The sidecar could not start, or did not end well.
    #[error("the sidecar failed")]
    App(#[source] AppError),
    /// Its configuration is not accepted.
    #[error("the sidecar's configuration is not accepted")]
    Config(#[source] ConfigErrors),
    /// The folder cannot be made.
    #[error("no folder can be made in the temporary directory")]
    Folder(#[source] io::Error),
    /// The gateway could not start.
    #[error("the example gateway could not start")]
    Gateway(#[source] io::Error),
    /// The output cannot be written.
    #[error("the output cannot be written")]
    Output(#[source] io::Error),
    /// A step did something else than its text says; what is wrong has been shown.
    #[error("a step of the guided run failed: {0}")]
    Step(String),
}

/// Runs the demo on the standard output. Blocks until it has ended.
///
/// # Errors
///
/// See [`DemoError`].
pub fn run(after: After) -> Result<(), DemoError> {
    let folder = Folder::new().map_err(DemoError::Folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(DemoError::Gateway)?;
    let tasks = Tasks::new();
    let gateway = runtime.block_on(Gateway::start(&tasks)).map_err(DemoError::Gateway)?;
    let config = config(&folder, gateway.address()).map_err(DemoError::Config)?;
    let sidecar = app::start(config, Signals::Ignored).map_err(DemoError::App)?;
    let mut demo = Demo {
        guide: Guide {
            agent: Client::new(sidecar.data, &tasks),
            gateway: Client::new(gateway.address(), &tasks),
            admin: sidecar.admin.clone(),
            screen: Screen::stdout(),
        },
        gateway: gateway.address(),
        sidecar: sidecar.data,
        folder: &folder,
    };
    let ran = runtime.block_on(demo.until_asked(after));
    drop(demo);
    sidecar.stop();
    sidecar.join().map_err(DemoError::App)?;
    ran
}

fn config(folder: &Folder, gateway: SocketAddr) -> Result<Config, ConfigErrors> {
    let (policies, ledger) = (folder.policies(), folder.ledger());
    Config::load(Sources::of(&[
        ("upstream.url", &format!("http://{gateway}")),
        ("policies", &policies.to_string_lossy()),
        ("ledger", &ledger.to_string_lossy()),
        ("listen", "127.0.0.1:0"),
        ("telemetry_listen", "127.0.0.1:0"),
        ("drain.min_ms", "0"),
        ("limits.workers", "1"),
    ]))
}

struct Demo<'a, W> {
    guide: Guide<W>,
    gateway: SocketAddr,
    sidecar: SocketAddr,
    folder: &'a Folder,
}

impl<W: Write> Demo<'_, W> {
    /// The guided run, and the time after it, until a signal.
    async fn until_asked(&mut self, after: After) -> Result<(), DemoError> {
        // Whichever loses is dropped: a guide that is stopped in a step has nobody who waits for
        // it.
        tokio::select! {
            biased;
            asked = asked_to_stop() => asked.map_err(DemoError::Gateway),
            ran = self.whole(after) => ran,
        }
    }

    async fn whole(&mut self, after: After) -> Result<(), DemoError> {
        match self.tour(after).await {
            Ok(()) => {}
            // A reader that leaves (`| head`) ends the demo, and is no failure.
            Err(Failed::Screen(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(());
            }
            Err(Failed::Screen(error)) => return Err(DemoError::Output(error)),
            Err(failed) => {
                let text = failed.to_string();
                self.guide.screen.failure(&text).map_err(DemoError::Output)?;
                return Err(DemoError::Step(text));
            }
        }
        match after {
            After::Exit => Ok(()),
            After::Stay => std::future::pending().await,
        }
    }

    async fn tour(&mut self, after: After) -> Result<(), Failed> {
        self.opening()?;
        self.guide.read().await?;
        self.guide.reversible().await?;
        self.guide.compensable().await?;
        self.guide.irreversible().await?;
        self.guide.repeated().await?;
        self.guide.lost().await?;
        self.guide.mcp().await?;
        self.guide.ledger().await?;
        match after {
            After::Exit => Ok(()),
            After::Stay => Ok(self.closing()?),
        }
    }

    fn opening(&mut self) -> io::Result<()> {
        let (gateway, sidecar) = (self.gateway, self.sidecar);
        let screen = &mut self.guide.screen;
        screen.title("takeback demo: an agent, the proxy, and a gateway")?;
        screen.row(
            "gateway",
            &format!("http://{gateway}  github-mini: HTTP, and MCP on {MCP_PATH}"),
        )?;
        screen
            .row("takeback", &format!("http://{sidecar}  before it; the agent knows only this"))?;
        screen.row("policies", &self.folder.policies().display().to_string())?;
        screen.row("ledger", &self.folder.ledger().display().to_string())?;
        screen.space()?;
        screen.say(
            "> is what the agent sends, < what it gets. Of each answer the report is shown, or the \
             part of it that matters.",
        )
    }

    fn closing(&mut self) -> io::Result<()> {
        let at = format!("http://{}", self.sidecar);
        let ledger = self.folder.ledger();
        let json = "-H 'Content-Type: application/json'";
        let screen = &mut self.guide.screen;
        screen.title("Now you: all of it stays up until Ctrl-C")?;
        screen.verbatim(&format!("curl -i {at}/repos/octo/hello/issues"))?;
        screen.verbatim(&format!(
            "curl -i {at}/repos/octo/hello/issues/1/comments {json} -d '{{\"body\":\"Mine\"}}'"
        ))?;
        screen.verbatim(&format!(
            "curl -i {at}/repos/octo/hello/releases {json} -d '{{\"tag_name\":\"v3.0\"}}'"
        ))?;
        screen.space()?;
        screen.say(
            "The third is refused, and its answer holds a token: send it again with -H \
             'Effect-Confirm: TOKEN'. An MCP client connects to the path /mcp. And the ledger:",
        )?;
        screen.space()?;
        screen.verbatim(&format!("takeback ledger list --ledger {}", ledger.display()))?;
        screen.flush()
    }
}

/// Resolves on SIGINT or SIGTERM.
async fn asked_to_stop() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Losing one loses nothing: either ends the demo.
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
