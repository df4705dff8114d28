//! What was given, where, and what is wrong with it: the layers under [`Config`](super::Config).
//!
//! A value is taken from the first place that has it: a flag, a `TAKEBACK_*` variable, the file. The
//! file is held to the closed list whole, also where a flag wins over it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::policy::settings::{LeafValue, leaves, nearest};

/// Every setting there is, under its name in the file. `TAKEBACK_` and this name in capitals, with
/// `_` for the dot, is its variable.
pub const MEMBERS: &[&str] = &[
    "listen",
    "telemetry_listen",
    "admin_listen",
    "admin.tokens_file",
    "admin.cert_file",
    "admin.key_file",
    "admin.client_ca_file",
    "upstream.url",
    "upstream.headers_file",
    "upstream.ca_file",
    "upstream.cert_file",
    "upstream.key_file",
    "upstream.server_name",
    "tls.cert_file",
    "tls.key_file",
    "tls.client_ca_file",
    "principal.headers.name",
    "principal.headers.from",
    "principal.jwt.issuer",
    "principal.jwt.audience",
    "principal.jwt.jwks_file",
    "principal.jwt.jwks_url",
    "principal.jwt.required",
    "principal.mtls",
    "policies",
    "ledger",
    "ledger_mac_key_file",
    "ledger_retention",
    "mcp.paths",
    "mcp.allow_methods",
    "mcp.trust_annotations",
    "mcp.reports",
    "mcp.call_route",
    "mode",
    "report_header",
    "limits.inflight",
    "limits.connections",
    "limits.request_body_bytes",
    "limits.response_body_bytes",
    "limits.body_budget_bytes",
    "limits.workers",
    "timeouts.connect_ms",
    "timeouts.head_ms",
    "timeouts.idle_ms",
    "timeouts.total_ms",
    "timeouts.lookup_ms",
    "timeouts.request_head_ms",
    "timeouts.request_idle_ms",
    "timeouts.keep_alive_ms",
    "drain.min_ms",
    "drain.grace_ms",
];

/// Settings whose value is a list; a flag is given once per element, a variable holds them with
/// commas.
const LISTS: &[&str] =
    &["mcp.allow_methods", "mcp.paths", "principal.headers.from", "principal.jwt.audience"];

/// The variable of a database's password, as every client of PostgreSQL reads it.
pub const PASSWORD: &str = "PGPASSWORD";

/// Variables that are read elsewhere.
const OTHER_VARIABLES: &[&str] = &["TAKEBACK_CONFIG", "TAKEBACK_LOG", "TAKEBACK_LOG_FORMAT"];

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A variable of the environment.
    Environment(String),
    /// A place in the file.
    File {
        /// The file's name.
        name: Arc<str>,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
    },
    /// A flag of the command.
    Flag(&'static str),
    /// Nowhere: it is missing, or the default.
    Nowhere,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => f.write_str(name),
            Self::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Self::Flag(flag) => f.write_str(flag),
            Self::Nowhere => f.write_str("configuration"),
        }
    }
}

/// One fault of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where.
    pub origin: Origin,
    /// What is wrong; never a credential.
    pub message: String,
    /// What to do.
    pub help: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.message)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, "\n  help: {}", self.help) }
    }
}

/// Every fault of the configuration at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The places that values come from. Their `Debug` shows no value: a password may be among them.
#[derive(Clone, Default)]
pub struct Sources {
    /// Flags: the setting's name, the flag as it is written, and its value. A list's flag is given
    /// once per element.
    pub flags: Vec<(&'static str, &'static str, String)>,
    /// The process's environment; only `TAKEBACK_*` and `PGPASSWORD` are looked at.
    pub environment: Vec<(String, String)>,
    /// The file, and its text.
    pub file: Option<(PathBuf, String)>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.as_ref().map(|(path, _)| path);
        f.debug_struct("Sources").field("file", &file).finish_non_exhaustive()
    }
}

impl Sources {
    /// Settings by name, as if they were flags: for tests and the demo.
    pub fn of(settings: &[(&'static str, &str)]) -> Self {
        let flags =
            settings.iter().map(|(name, value)| (*name, *name, (*value).to_owned())).collect();
        Self { flags, ..Self::default() }
    }
}

/// One setting as it was given.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) origin: Origin,
    /// One for everything but lists.
    pub(super) values: Vec<String>,
}

/// The settings that were given, and the faults so far.
#[derive(Default)]
pub(super) struct Reader {
    given: HashMap<&'static str, Given>,
    folder: Option<PathBuf>,
    password: Option<String>,
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<String>,
}

impl Reader {
    pub(super) fn new(sources: Sources) -> Self {
        let mut reader = Self::default();
        for (name, flag, value) in sources.flags {
            let known = reader
                .given
                .entry(name)
                .or_insert_with(|| Given { origin: Origin::Flag(flag), values: Vec::new() });
            known.values.push(value);
        }
        reader.read_environment(sources.environment);
        if let Some((path, text)) = sources.file {
            reader.read_file(&path, &text);
        }
        reader
    }

    /// Every setting that was given, with the values that count.
    pub(super) fn effective(&self) -> BTreeMap<&'static str, Vec<String>> {
        self.given.iter().map(|(name, given)| (*name, given.values.clone())).collect()
    }

    fn read_environment(&mut self, environment: Vec<(String, String)>) {
        let variables: Vec<(String, &'static str)> =
            MEMBERS.iter().map(|member| (variable(member), *member)).collect();
        for (name, value) in environment {
            if name == PASSWORD {
                self.password = Some(value);
                continue;
            }
            if !name.starts_with("TAKEBACK_") || OTHER_VARIABLES.contains(&name.as_str()) {
                continue;
            }
            let known = variables.iter().find(|(variable, _)| *variable == name);
            // `TAKEBACK_UPSTREAM` is what the flag's name makes one try.
            let member = match (known, name.as_str()) {
                (Some((_, member)), _) => *member,
                (None, "TAKEBACK_UPSTREAM") => "upstream.url",
                (None, _) => {
                    self.warn_of_variable(&name, &variables);
                    continue;
                }
            };
            let values = if LISTS.contains(&member) {
                value.split(',').map(|part| part.trim().to_owned()).collect()
            } else {
                vec![value]
            };
            let given = Given { origin: Origin::Environment(name), values };
            self.given.entry(member).or_insert(given);
        }
    }

    /// The password of a database, where its URL holds none.
    pub(super) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// An unknown variable is no error: Kubernetes sets some of this form for a Service called
    /// `takeback`.
    fn warn_of_variable(&mut self, name: &str, variables: &[(String, &'static str)]) {
        let is_service = name.contains("_SERVICE_") || name.contains("_PORT");
        if is_service {
            return;
        }
        let known: Vec<&str> = variables.iter().map(|(variable, _)| variable.as_str()).collect();
        let hint = nearest(name, &known).map(|near| format!("; did you mean {near}?"));
        self.warnings.push(format!("{name} is not a setting{}", hint.unwrap_or_default()));
    }

    fn read_file(&mut self, path: &Path, text: &str) {
        let name: Arc<str> = path.display().to_string().into();
        self.folder = path.parent().map(Path::to_owned);
        let leaves = match leaves(&name, text) {
            Ok(leaves) => leaves,
            Err(fault) => {
                let (line, column) = (fault.line, fault.column);
                let origin = Origin::File { name, line, column };
                self.error(origin, fault.message, fault.help.unwrap_or_default());
                return;
            }
        };
        for leaf in leaves {
            let (line, column) = (leaf.line, leaf.column);
            let origin = Origin::File { name: Arc::clone(&name), line, column };
            let is_section = is_section(&leaf.name);
            let Some(member) = MEMBERS.iter().find(|member| **member == leaf.name) else {
                match leaf.value {
                    LeafValue::Empty if is_section => {}
                    LeafValue::Empty
                    | LeafValue::List(_)
                    | LeafValue::Nested
                    | LeafValue::Scalar(_) => self.refuse_member(origin, &leaf.name),
                }
                continue;
            };
            let values = match (leaf.value, LISTS.contains(member)) {
                (LeafValue::Scalar(text), false) => vec![text],
                (LeafValue::List(texts), true) => texts,
                (LeafValue::Empty, _) => continue,
                (LeafValue::Nested | LeafValue::Scalar(_), true) => {
                    let help = format!("write it as `{member}: [a, b]`");
                    self.error(origin, format!("`{member}` is not a list of texts"), help);
                    continue;
                }
                (LeafValue::List(_) | LeafValue::Nested, false) => {
                    self.error(origin, format!("`{member}` is a list"), "give one value");
                    continue;
                }
            };
            self.given.entry(member).or_insert(Given { origin, values });
        }
    }

    fn refuse_member(&mut self, origin: Origin, name: &str) {
        if is_section(name) {
            let members: Vec<&str> = MEMBERS
                .iter()
                .filter_map(|member| member.strip_prefix(name)?.strip_prefix('.'))
                .collect();
            let help = format!("its members are {}", members.join(", "));
            return self.error(origin, format!("`{name}` is a mapping"), help);
        }
        let own = name.rsplit('.').next().unwrap_or(name);
        let near = nearest(name, MEMBERS).or_else(|| {
            let is_same = |member: &&&str| member.rsplit('.').next() == Some(own);
            MEMBERS.iter().find(is_same).copied()
        });
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the settings are {}", MEMBERS.join(", ")),
        };
        self.error(origin, format!("there is no setting `{name}`"), help);
    }

    pub(super) fn error(
        &mut self,
        origin: Origin,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let (message, help) = (message.into(), help.into());
        self.errors.push(ConfigError { origin, message, help });
    }

    /// A setting's values and where they were given.
    pub(super) fn list(&self, member: &'static str) -> Option<Given> {
        self.given.get(member).cloned()
    }

    /// A setting's value and where it was given.
    pub(super) fn text(&mut self, member: &'static str) -> Option<(Origin, String)> {
        let given = self.given.get(member)?.clone();
        let mut values = given.values.into_iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Some((given.origin, value)),
            (None, _) => None,
            (Some(_), Some(_)) => {
                self.error(given.origin, format!("`{member}` is given twice"), "give it once");
                None
            }
        }
    }

    /// A setting read by `read`, whose error is what is wrong and what to do; `None` if it was not
    /// given, or is wrong.
    pub(super) fn read<T>(
        &mut self,
        member: &'static str,
        read: impl FnOnce(&str) -> Result<T, (String, String)>,
    ) -> Option<T> {
        let (origin, text) = self.text(member)?;
        match read(&text) {
            Ok(value) => Some(value),
            Err((what, help)) => {
                self.error(origin, format!("`{member}` {what}"), help);
                None
            }
        }
    }

    /// A whole number within bounds, both inclusive.
    pub(super) fn number(
        &mut self,
        member: &'static str,
        default: u64,
        bounds: std::ops::RangeInclusive<u64>,
    ) -> u64 {
        let value = self.read(member, |text| {
            let help = format!("give a whole number from {} to {}", bounds.start(), bounds.end());
            let value = text.parse().ok().filter(|value| bounds.contains(value));
            value.ok_or_else(|| (format!("is {}", shown(text)), help))
        });
        value.unwrap_or(default)
    }

    /// A path. One that is relative counts from the file's folder if it was given there, else from
    /// the working directory.
    pub(super) fn path(&mut self, member: &'static str) -> Option<PathBuf> {
        let (origin, text) = self.text(member)?;
        if text.is_empty() {
            self.error(origin, format!("`{member}` is empty"), "give a path");
            return None;
        }
        match (&origin, &self.folder) {
            (Origin::File { .. }, Some(folder)) => Some(folder.join(text)),
            (
                Origin::Environment(_) | Origin::File { .. } | Origin::Flag(_) | Origin::Nowhere,
                _,
            ) => Some(PathBuf::from(text)),
        }
    }
}

/// A value as an error shows it: bounded.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    if text.chars().count() <= LONGEST {
        format!("`{text}`")
    } else {
        format!("`{}...`", text.chars().take(LONGEST).collect::<String>())
    }
}

fn is_section(name: &str) -> bool {
    MEMBERS.iter().any(|member| member.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The variable of a setting.
pub(super) fn variable(member: &str) -> String {
    format!("TAKEBACK_{}", member.replace('.', "_").to_ascii_uppercase())
}
