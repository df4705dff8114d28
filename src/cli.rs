//! The command line: reads arguments, calls what does the work, turns its result into an exit code.
//!
//! Exit codes are those of `sysexits.h` (the list is in `exit`); `check` and `diff` end with 1 for
//! findings and changes and 2 for wrong usage, as linters do. What a command says goes to standard output, what went wrong to
//! standard error. Lists are aligned text for people, or with `--format json` one JSON document per
//! line; colours only on a terminal.

mod check;
mod diff;
mod exit;
mod explain;
mod export;
mod health;
mod import;
mod ledger;
mod out;
mod prove;
mod remote;
mod undo;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use crate::app;
use crate::config::{Config, PASSWORD, Places, Sources, ledger_keys, telemetry_address};
use crate::contract::key::EntryId;
use crate::demo;
use crate::files;
use crate::policy::JSON_SCHEMA;
use crate::prove::Options;

use exit::{Failure, chain, with_help};

/// A sidecar between an agent and a gateway: each write is classified, confirmed, recorded before it is
/// sent, and reported with the call that takes it back.
#[derive(Debug, Parser)]
#[command(name = "takeback", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  takeback demo                       see everything once, with a gateway of its own
  takeback check policies/            say what is wrong with policies
  takeback explain POST /repos/octo/hello/issues --policies policies/github-mini
  takeback run --upstream http://127.0.0.1:9000 --policies policies/github-mini
  takeback ledger list --state unknown
  takeback undo plan --task T         what of a task can be taken back, and how
  takeback settle ENTRY accepted --why \"the ticket is there\"

Every setting can also stand in a file (--config) or in a TAKEBACK_* variable:
listen is TAKEBACK_LISTEN, upstream.url is TAKEBACK_UPSTREAM_URL. TAKEBACK_LOG filters the log:
info, warn, debug, takeback::pipeline=debug.

Commands end with 0, or with a code of sysexits.h: 64 wrong usage; 65 what was named is not there
or is not what it should be; 69 nothing answers there; 70 a defect; 71 the system refuses; 73 no
file or socket can be made; 74 reading or writing failed; 75 in use by another; 77 not permitted;
78 the settings are wrong, or the policy cannot be served. check and diff end with 1 and 2 instead.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve: stand before a gateway and enforce the policies
    Run(RunArgs),
    /// Show a guided run of every class, with a small gateway of its own
    Demo(DemoArgs),
    /// Compile policies and say what is wrong with them
    Check(CheckArgs),
    /// Say what one call would be, what it would need, and how it would be taken back
    Explain(ExplainArgs),
    /// Say what changes between two policies, weakenings first
    Diff(DiffArgs),
    /// Write a skeleton policy out of an OpenAPI document or a tools/list answer
    #[command(subcommand)]
    Import(ImportCommand),
    /// Print the JSON Schema of policy files, for editors
    Schema,
    /// Read the ledger, beside a running sidecar or without one
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// Decide about an entry whose outcome is unknown
    Settle(SettleArgs),
    /// Look up the entries whose outcome is unknown
    Reconcile(ReconcileArgs),
    /// End a running sidecar in order, as SIGTERM does, and wait for its end
    Drain(DrainArgs),
    /// Ask a running sidecar's probes: ends with 0 if it is well, with 1 if not
    Healthcheck(HealthArgs),
    /// Try the promises against faults, and count the effects
    Prove(ProveArgs),
    /// Take back what a task did, newest first
    #[command(subcommand)]
    Undo(UndoCommand),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The gateway: http(s)://HOST[:PORT][/BASE]
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// The folder of policy files
    #[arg(long, value_name = "DIR")]
    policies: Option<String>,
    /// Where agents connect [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where probes and metrics are read [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDR")]
    telemetry_listen: Option<String>,
    /// The Unix socket of the admin API [default: the ledger's path and .sock]; or a loopback address,
    /// with admin.tokens_file
    #[arg(long, value_name = "PATH")]
    admin_listen: Option<String>,
    /// The ledger: a file, or postgres://USER@HOST/DATABASE with the password in PGPASSWORD
    /// [default: takeback-data/ledger.db]
    #[arg(long, value_name = "PLACE")]
    ledger: Option<String>,
    /// A file with the key of the chain over the ledger's history, on its first line; older keys follow
    #[arg(long, value_name = "FILE")]
    ledger_mac_key_file: Option<String>,
    /// How long what calls and answers held is kept, such as 30d [default: for ever]
    #[arg(long, value_name = "TIME")]
    ledger_retention: Option<String>,
    /// A path that speaks MCP; may be given several times [default: /mcp]
    #[arg(long = "mcp-path", value_name = "PATH")]
    mcp_paths: Vec<String>,
    /// A file of `Name: value` lines that every request to the gateway carries
    #[arg(long, value_name = "FILE")]
    upstream_headers_file: Option<String>,
    /// Whether the rules stop calls, or are only reported: enforce or observe [default: enforce]
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Refuse to start if an operation's contract has an error, instead of serving it degraded
    #[arg(long)]
    strict: bool,
    /// A YAML or JSON file of settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How the log's lines are written [default: json, or text on a terminal]
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        env = "TAKEBACK_LOG_FORMAT",
        hide_env_values = true
    )]
    log_format: Option<app::log::Format>,
}

/// What `demo` is told.
#[derive(Debug, Args)]
struct DemoArgs {
    /// End after the guided run instead of staying up to be tried
    #[arg(long)]
    exit: bool,
}

#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
struct CheckArgs {
    /// Folders of policy files; one that has none of its own is searched for folders that do
    #[arg(required_unless_present = "explain", value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// How findings are written
    #[arg(long, value_enum, default_value_t = CheckFormat::Human)]
    format: CheckFormat,
    /// Let warnings count as errors
    #[arg(long)]
    strict: bool,
    /// Tell more about one code, and check nothing
    #[arg(long, value_name = "CODE", conflicts_with = "folders")]
    explain: Option<String>,
    /// The sidecar's `drain.grace_ms`: an operation that may take longer is a warning
    #[arg(long, value_name = "N")]
    grace_ms: Option<u64>,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  takeback check policies/
  takeback check policies/github-mini --format sarif > findings.sarif
  takeback check --explain effect/operation_missing

Ends with 0, with 1 if there is an error (or, with --strict, a warning), with 2 for wrong usage. A folder
that cannot be read is an error.";

/// How findings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CheckFormat {
    /// For people, with the place underlined
    Human,
    /// One JSON object per line
    Json,
    /// One SARIF 2.1.0 document, for what shows findings beside code
    Sarif,
}

#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
struct ExplainArgs {
    /// The method
    #[arg(required_unless_present = "tool", requires = "path", conflicts_with = "tool")]
    method: Option<String>,
    /// The path as the agent asks for it, with its query
    #[arg(conflicts_with = "tool")]
    path: Option<String>,
    /// A header; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", conflicts_with = "tool")]
    headers: Vec<String>,
    /// A file with the body, or - for standard input; JSON unless a Content-Type says otherwise
    #[arg(long, value_name = "FILE", conflicts_with = "tool")]
    body: Option<PathBuf>,
    /// A tool instead of a method and path
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// The tool's arguments
    #[arg(long, value_name = "JSON", default_value = "{}", conflicts_with = "method")]
    arguments: String,
    /// The folder of policy files [default: TAKEBACK_POLICIES]
    #[arg(long, value_name = "DIR")]
    policies: Option<PathBuf>,
    /// How it is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  takeback explain DELETE /repos/octo/hello/issues/comments/100 --policies policies/github-mini
  takeback explain POST /v1/charges --header \"Idempotency-Key: a\" --body charge.json --policies p
  takeback explain --tool github__create_comment --arguments '{\"body\": \"hello\"}' --policies p

Nothing is sent.";

#[derive(Debug, Args)]
#[command(after_help = DIFF_EXAMPLES)]
struct DiffArgs {
    /// The folder of the old policy
    old: PathBuf,
    /// The folder of the new one
    new: PathBuf,
    /// How changes are written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

const DIFF_EXAMPLES: &str = "\
Examples:
  takeback diff /etc/takeback/policies policies/mine
  takeback diff old new --format json | jq 'select(.weaker)'

Ends with 0 if nothing changes, with 1 if something does, with 2 if one cannot be read or served.";

#[derive(Debug, Subcommand)]
#[command(after_help = IMPORT_EXAMPLES)]
enum ImportCommand {
    /// Out of an OpenAPI 3 document
    Openapi(ImportArgs),
    /// Out of a saved tools/list answer, or a JSON list of its pages
    Tools(ImportArgs),
}

#[derive(Debug, Args)]
struct ImportArgs {
    /// The document; keep it beside the policy, whose catalog it is
    file: PathBuf,
}

const IMPORT_EXAMPLES: &str = "\
Examples:
  takeback import openapi policies/mine/openapi.json > policies/mine/mine.yaml
  takeback import tools policies/mine/tools.json > policies/mine/tools.yaml

Every write comes out undeclared, and so irreversible: its class is for a person to write. What the
document suggests stands beside it as a comment.";

/// How a command writes what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Aligned text
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Debug, Subcommand)]
enum LedgerCommand {
    /// List entries, newest first
    List(ListArgs),
    /// Show one entry and its history
    Show(ShowArgs),
    /// Write every entry, newest first, for an archive or another tool
    Export(ExportArgs),
    /// Follow the chain over the history, and name the first row that does not fit
    Verify(VerifyArgs),
    /// Take a part out of what an entry holds of its call; asks the running sidecar
    Redact(RedactArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only entries in this state: begun, waiting, unknown, accepted, rejected or undone
    #[arg(long)]
    state: Option<String>,
    /// Only entries of this operation
    #[arg(long, value_name = "ID")]
    operation: Option<String>,
    /// Only entries with this label, as the agent gave it in Effect-Task
    #[arg(long, value_name = "LABEL")]
    task: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
    #[command(flatten)]
    place: PlaceArgs,
    /// How they are written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// The entry's id, as reports and lists show it
    entry: String,
    /// Its receipt: who allowed it, how it was sent, and what proves it; without arguments and values
    #[arg(long)]
    receipt: bool,
    #[command(flatten)]
    place: PlaceArgs,
    /// How it is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
struct ExportArgs {
    /// Only entries newer than this one: the first of the export before
    #[arg(long, value_name = "ENTRY")]
    since: Option<String>,
    /// Only entries older than this one: the last line of an export that was interrupted
    #[arg(long, value_name = "ENTRY")]
    before: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
    /// How they are written
    #[arg(long, value_enum, default_value_t = ExportFormat::Jsonl)]
    format: ExportFormat,
}

#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
struct VerifyArgs {
    /// A head that the sidecar wrote to its log: the chain must have had it; may be given several times
    #[arg(long = "head", value_name = "HEAD:LENGTH")]
    heads: Vec<String>,
    /// The keys of the chain: one to a line, the one in use first
    #[arg(long, value_name = "FILE")]
    ledger_mac_key_file: Option<String>,
    /// Say that what does not fit is known, so that writes are taken again; asks the running sidecar
    #[arg(long, requires = "why", conflicts_with = "heads")]
    acknowledge: bool,
    /// Your reason; it stands in the chain
    #[arg(long, value_name = "TEXT", requires = "acknowledge")]
    why: Option<String>,
    #[command(flatten)]
    socket: SocketArgs,
    /// How the answer is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = REDACT_EXAMPLES)]
struct RedactArgs {
    /// The entry's id
    entry: String,
    /// Which parts: JSON pointers over the entry
    #[arg(required = true, value_name = "POINTER")]
    pointers: Vec<String>,
    /// Your reason; it stands in the entry's history
    #[arg(long, value_name = "TEXT")]
    why: String,
    #[command(flatten)]
    socket: SocketArgs,
    /// How the answer is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

const REDACT_EXAMPLES: &str = "\
Examples:
  takeback ledger redact ENTRY /answer/body/email /before/body/email --why \"asked for by its owner\"

Pointers: /target, /before/..., /answer/body/..., /answer, /upstream_id, /undo, /compensate, /lookup.
Undo, compensate and lookup go whole: one with a gap in it would be another call. An answer of which a
part is gone is not given to a repeat. The chain over the history still verifies.";

const VERIFY_EXAMPLES: &str = "\
Examples:
  takeback ledger verify --ledger-mac-key-file /etc/takeback/ledger-keys
  takeback ledger verify --head 4f0c...:1042
  takeback ledger verify --acknowledge --why \"restored from the backup of Sunday, see INC-7\"

Ends with 0 if the chain is whole, with 65 if a row does not fit or a head is missing, with 78 if a key is.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  takeback ledger export > ledger.jsonl
  takeback ledger export --format csv > ledger.csv
  takeback ledger export --since 019b0000-0000-7000-8000-000000000000 >> more.jsonl";

/// How an export is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    /// One row per entry
    Csv,
    /// One JSON object per line, with the entry's history
    Jsonl,
}

#[derive(Debug, Args)]
struct SettleArgs {
    /// The entry's id
    entry: String,
    /// What became of it
    outcome: Decision,
    /// Your reason; it stands in the entry's history
    #[arg(long, value_name = "TEXT")]
    why: String,
    #[command(flatten)]
    socket: SocketArgs,
    /// How the answer is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// What a person can decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Decision {
    /// The effect is there
    Accepted,
    /// The effect is not there, and will not come
    Rejected,
}

#[derive(Debug, Args)]
struct ReconcileArgs {
    /// One run: each unknown entry is looked up once. Without it they are looked up again and again,
    /// and told as they settle, until none is left that a lookup can settle
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    socket: SocketArgs,
    /// How the results are written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = PROVE_EXAMPLES)]
struct ProveArgs {
    /// Intended calls per fault
    #[arg(long, value_name = "N", default_value_t = 300)]
    writes: u32,
    /// Only this fault; may be given several times
    #[arg(long = "fault", value_name = "NAME")]
    faults: Vec<String>,
    /// The ledger to prove it on, a file or postgres://... [default: a file of its own]
    #[arg(long, value_name = "LEDGER")]
    ledger: Option<String>,
    /// How the rows are written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

const PROVE_EXAMPLES: &str = "\
Examples:
  takeback prove
  takeback prove --writes 10000
  takeback prove --fault answer-lost --fault proxy-killed --format json
  takeback prove --fault database-killed --ledger postgres://takeback@localhost/proof

A gateway that counts effects, a sidecar as a process of its own, and agents that repeat what they got no
answer to; nothing outside this machine is called. Ends with 0 if every row holds, else with 1.";

#[derive(Debug, Args)]
#[command(after_help = DRAIN_EXAMPLES)]
struct DrainArgs {
    /// Only ask; do not wait for the end
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

const DRAIN_EXAMPLES: &str = "\
Examples:
  takeback drain --admin-socket /var/lib/takeback/ledger.db.sock
  lifecycle: { preStop: { exec: { command: [/takeback, drain] } } }

The sidecar is unready at once, serves for drain.min_ms, takes no calls from then on, and ends when
its calls are answered, or after drain.grace_ms. A SIGTERM meanwhile changes nothing; a second cuts.";

#[derive(Debug, Args)]
#[command(after_help = HEALTH_EXAMPLES)]
struct HealthArgs {
    /// Which probe
    #[arg(value_enum, default_value_t = health::Probe::Ready)]
    probe: health::Probe,
    /// Where probes are read [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDR")]
    telemetry_listen: Option<String>,
    /// The sidecar's file of settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

const HEALTH_EXAMPLES: &str = "\
Examples:
  takeback healthcheck
  takeback healthcheck live --telemetry-listen 127.0.0.1:9464
  HEALTHCHECK CMD [\"/takeback\", \"healthcheck\", \"live\"]";

#[derive(Debug, Subcommand)]
#[command(after_help = UNDO_EXAMPLES)]
enum UndoCommand {
    /// Say of each write of a task whether it can be taken back, and how; nothing is sent
    Plan(UndoPlanArgs),
    /// Make the calls of the plan through the sidecar, newest first
    Run(UndoRunArgs),
}

#[derive(Debug, Args)]
struct UndoPlanArgs {
    /// The task's label, as the agent gave it in Effect-Task
    #[arg(long, value_name = "LABEL")]
    task: String,
    #[command(flatten)]
    socket: SocketArgs,
    /// How it is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Args)]
struct UndoRunArgs {
    /// The task's label, as the agent gave it in Effect-Task
    #[arg(long, value_name = "LABEL")]
    task: String,
    /// Only these entries of it; may be given several times
    #[arg(long = "entry", value_name = "ENTRY")]
    entries: Vec<String>,
    /// The sidecar's data port [default: http:// and its `listen`]
    #[arg(long, value_name = "URL")]
    through: Option<String>,
    /// A file of `Name: value` lines that each call carries, such as a credential
    #[arg(long, value_name = "FILE")]
    headers_file: Option<PathBuf>,
    /// Confirm what asks for a confirmation, instead of asking you on the terminal
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    socket: SocketArgs,
    /// How the results are written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

const UNDO_EXAMPLES: &str = "\
Examples:
  takeback undo plan --task release-42
  takeback undo run --task release-42 --headers-file credential
  takeback undo run --task release-42 --entry 019b0000-0000-7000-8000-000000000000 --yes

Each call is an ordinary one: it is confirmed where its own class asks for it, recorded, and reported.
`run` ends with 0 if every call that could be made took its entry back, else with 1.";

/// Which ledger.
#[derive(Debug, Args)]
struct PlaceArgs {
    /// The ledger: a file, or postgres://USER@HOST/DATABASE with the password in PGPASSWORD
    /// [default: takeback-data/ledger.db]
    #[arg(long, value_name = "PLACE")]
    ledger: Option<String>,
    /// The sidecar's file of settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Which running sidecar.
#[derive(Debug, Args)]
struct SocketArgs {
    /// The sidecar's admin socket [default: the ledger's path and .sock]
    #[arg(long, value_name = "PATH")]
    admin_socket: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return refuse(&error),
    };
    match Cli::from_arg_matches(&matches) {
        Ok(cli) => exit::end(dispatch(cli.command)),
        Err(error) => refuse(&error),
    }
}

/// Prints help, the version, or what is wrong with the arguments.
fn refuse(error: &clap::Error) -> ExitCode {
    // Nobody can be told if even that cannot be written.
    drop(error.print());
    let command = std::env::args_os().nth(1);
    let is_linter = command.is_some_and(|command| command == "check" || command == "diff");
    ExitCode::from(match (error.use_stderr(), is_linter) {
        (false, _) => exit::OK,
        (true, true) => exit::CHECK_USAGE,
        (true, false) => exit::USAGE,
    })
}

fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(args) => serve(args),
        Command::Demo(args) => {
            demo::run(if args.exit { demo::After::Exit } else { demo::After::Stay })?;
            Ok(exit::OK)
        }
        Command::Check(CheckArgs { explain: Some(code), format, .. }) => {
            check::explain(&code, format)
        }
        Command::Check(args) => check::run(&check::Check {
            folders: &args.folders,
            format: args.format,
            is_strict: args.strict,
            grace: args.grace_ms.map(Duration::from_millis),
        }),
        Command::Explain(args) => explain_call(&args),
        Command::Diff(args) => diff::run(&args.old, &args.new, args.format),
        Command::Import(ImportCommand::Openapi(args)) => {
            import::run(import::Kind::OpenApi, &args.file)
        }
        Command::Import(ImportCommand::Tools(args)) => import::run(import::Kind::Tools, &args.file),
        Command::Schema => {
            out::print(JSON_SCHEMA.trim_end())?;
            Ok(exit::OK)
        }
        Command::Ledger(LedgerCommand::List(args)) => {
            let list = ledger::List {
                state: args.state.as_deref(),
                operation: args.operation.as_deref(),
                task: args.task.as_deref(),
                limit: usize::try_from(args.limit).unwrap_or(usize::MAX),
                format: args.format,
            };
            ledger::list(&places(args.place, None)?.ledger, &list)
        }
        Command::Ledger(LedgerCommand::Show(args)) => {
            let what = if args.receipt { ledger::What::Receipt } else { ledger::What::Entry };
            ledger::show(&places(args.place, None)?.ledger, &args.entry, what, args.format)
        }
        Command::Ledger(LedgerCommand::Export(args)) => {
            let export = export::Export {
                since: args.since.as_deref(),
                before: args.before.as_deref(),
                format: args.format,
            };
            export::run(&places(args.place, None)?.ledger, &export)
        }
        Command::Ledger(LedgerCommand::Redact(args)) => {
            let socket = socket(args.socket)?;
            remote::redact(&socket, &args.entry, &args.pointers, &args.why, args.format)
        }
        Command::Ledger(LedgerCommand::Verify(args)) => {
            if let Some(why) = args.why {
                return remote::acknowledge(&socket(args.socket)?, &why, args.format);
            }
            let mut flags = Vec::new();
            let place = args.socket.place;
            flags.extend(place.ledger.map(|ledger| ("ledger", "--ledger", ledger)));
            let keys = "ledger_mac_key_file";
            flags.extend(args.ledger_mac_key_file.map(|f| (keys, "--ledger-mac-key-file", f)));
            let sources = sources(flags, place.config)?;
            let keys = ledger_keys(sources.clone()).map_err(misconfigured)?;
            let place = Places::load(sources).map_err(misconfigured)?.ledger;
            let asked = verify::Verify { heads: &args.heads, format: args.format };
            verify::run(&place, &keys, &asked)
        }
        Command::Settle(args) => {
            let outcome = match args.outcome {
                Decision::Accepted => "accepted",
                Decision::Rejected => "rejected",
            };
            let socket = socket(args.socket)?;
            remote::settle(&socket, &args.entry, outcome, &args.why, args.format)
        }
        Command::Reconcile(args) => {
            let runs = if args.once { remote::Runs::One } else { remote::Runs::UntilSettled };
            remote::reconcile(&socket(args.socket)?, runs, args.format)
        }
        Command::Prove(args) => {
            let faults = prove::faults(&args.faults)?;
            let options = Options { writes: args.writes, faults, ledger: args.ledger };
            prove::run(&options, args.format)
        }
        Command::Drain(args) => {
            let until = if args.no_wait { remote::Until::Asked } else { remote::Until::Ended };
            remote::drain(&socket(args.socket)?, until)
        }
        Command::Healthcheck(args) => {
            let flags =
                args.telemetry_listen.map(|a| ("telemetry_listen", "--telemetry-listen", a));
            let sources = sources(flags.into_iter().collect(), args.config)?;
            let address = telemetry_address(sources).map_err(misconfigured)?;
            health::run(address, args.probe)
        }
        Command::Undo(UndoCommand::Plan(args)) => {
            undo::plan(&socket(args.socket)?, &args.task, args.format)
        }
        Command::Undo(UndoCommand::Run(args)) => undo::run(&undo::Run {
            task: &args.task,
            entries: &args.entries,
            through: args.through.as_deref(),
            headers_file: args.headers_file.as_deref(),
            yes: args.yes,
            format: args.format,
            places: places(args.socket.place, args.socket.admin_socket)?,
        }),
    }
}

fn explain_call(args: &ExplainArgs) -> Result<u8, Failure> {
    let asked = match (&args.tool, &args.method, &args.path) {
        (Some(name), _, _) => explain::Asked::Tool { name, arguments: &args.arguments },
        (None, Some(method), Some(target)) => explain::Asked::Http {
            method,
            target,
            headers: &args.headers,
            body: args.body.as_deref(),
        },
        (None, _, _) => return Err(Failure::new(exit::USAGE, "give a method and a path")),
    };
    let folder = explain::folder(args.policies.clone())?;
    explain::run(&folder, &asked, args.format)
}

fn serve(args: RunArgs) -> Result<u8, Failure> {
    app::log::init(args.log_format);
    let mut flags: Vec<(&'static str, &'static str, String)> = Vec::new();
    let mut flag = |member, flag, value: Option<String>| {
        flags.extend(value.map(|value| (member, flag, value)));
    };
    flag("upstream.url", "--upstream", args.upstream);
    flag("policies", "--policies", args.policies);
    flag("listen", "--listen", args.listen);
    flag("telemetry_listen", "--telemetry-listen", args.telemetry_listen);
    flag("admin_listen", "--admin-listen", args.admin_listen);
    flag("ledger", "--ledger", args.ledger);
    flag("ledger_mac_key_file", "--ledger-mac-key-file", args.ledger_mac_key_file);
    flag("ledger_retention", "--ledger-retention", args.ledger_retention);
    flag("upstream.headers_file", "--upstream-headers-file", args.upstream_headers_file);
    flag("mode", "--mode", args.mode);
    for path in args.mcp_paths {
        flag("mcp.paths", "--mcp-path", Some(path));
    }
    let sources = sources(flags, args.config)?;
    let mut config = Config::load(sources).map_err(misconfigured)?;
    config.is_strict = args.strict;
    app::run(config)?;
    Ok(exit::OK)
}

fn misconfigured(errors: crate::config::ConfigErrors) -> Failure {
    let count = errors.0.len();
    let plural = if count == 1 { "" } else { "s" };
    Failure::new(exit::CONFIG, format!("the configuration has {count} error{plural}\n{errors}"))
}

fn sources(
    flags: Vec<(&'static str, &'static str, String)>,
    config: Option<PathBuf>,
) -> Result<Sources, Failure> {
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| {
            let is_ours = |name: &String| name.starts_with("TAKEBACK_") || name == PASSWORD;
            let name = name.into_string().ok().filter(is_ours)?;
            Some((name, value.to_string_lossy().into_owned()))
        })
        .collect();
    let named = environment.iter().find(|(name, _)| name == "TAKEBACK_CONFIG");
    let path = config.or_else(|| named.map(|(_, path)| PathBuf::from(path)));
    let file = path.map(|path| read(&path).map(|text| (path, text))).transpose()?;
    Ok(Sources { flags, environment, file })
}

fn read(path: &Path) -> Result<String, Failure> {
    files::read_text(path, files::MAX_SETTINGS).map_err(|error| {
        let message = format!("the file of settings {} cannot be read: {error}", path.display());
        Failure::new(exit::CONFIG, with_help(&message, "give another --config"))
    })
}

fn places(args: PlaceArgs, socket: Option<String>) -> Result<Places, Failure> {
    let mut flags = Vec::new();
    flags.extend(args.ledger.map(|ledger| ("ledger", "--ledger", ledger)));
    flags.extend(socket.map(|socket| ("admin_listen", "--admin-socket", socket)));
    Places::load(sources(flags, args.config)?).map_err(misconfigured)
}

fn socket(args: SocketArgs) -> Result<PathBuf, Failure> {
    Ok(places(args.place, args.admin_socket)?.admin_listen)
}

fn entry_id(text: &str) -> Result<EntryId, Failure> {
    EntryId::parse(text).ok_or_else(|| {
        let message = format!("`{}` is no entry's id", out::clean(text));
        let help = "give it whole, as `takeback ledger list` shows it";
        Failure::new(exit::USAGE, with_help(&message, help))
    })
}

#[cfg(test)]
mod tests;
