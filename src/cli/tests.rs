use clap::CommandFactory as _;

use super::*;

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn help_is_what_a_stranger_reads_first() {
    let help = Cli::command().term_width(100).render_help().to_string();
    let golden = include_str!("help.txt");
    assert_eq!(help.trim_end(), golden.trim_end(), "src/cli/help.txt is not the help:\n{help}");
}

#[test]
fn every_argument_says_what_it_is() {
    let mut open = vec![Cli::command()];
    while let Some(command) = open.pop() {
        for argument in command.get_arguments() {
            let has_help = argument.get_help().is_some();
            assert!(has_help, "{} {}", command.get_name(), argument.get_id());
        }
        open.extend(command.get_subcommands().cloned());
    }
}

#[test]
fn arguments_are_read_or_refused() {
    let table: &[(&[&str], bool)] = &[
        (&["run", "--upstream", "http://a", "--policies", "p"], true),
        (&["run", "--mcp-path", "/a", "--mcp-path", "/b", "--strict"], true),
        (&["demo"], true),
        (&["demo", "--exit"], true),
        (&["check", "a", "b", "--format", "json", "--strict"], true),
        (&["check", "a", "--format", "sarif", "--grace-ms", "25000"], true),
        (&["check"], false),
        (&["check", "a", "--format", "text"], false),
        (&["check", "--explain", "policy/overlap"], true),
        (&["check", "a", "--explain", "policy/overlap"], false),
        (&["explain", "GET", "/a", "--header", "a: b", "--body", "-", "--policies", "p"], true),
        (&["explain", "--tool", "t", "--arguments", "{}"], true),
        (&["explain", "--tool", "t"], true),
        (&["explain", "GET"], false),
        (&["explain"], false),
        (&["explain", "GET", "/a", "--arguments", "{}"], false),
        (&["explain", "GET", "/a", "--tool", "t"], false),
        (&["diff", "a", "b", "--format", "json"], true),
        (&["diff", "a"], false),
        (&["import", "openapi", "a.json"], true),
        (&["import", "tools", "a.json"], true),
        (&["import", "a.json"], false),
        (&["schema"], true),
        (&["ledger", "list", "--state", "unknown", "--limit", "3"], true),
        (&["ledger", "list", "--limit", "-1"], false),
        (&["ledger", "show", "x", "--format", "json"], true),
        (&["ledger", "verify", "--head", "a:1", "--head", "b:2", "--format", "json"], true),
        (&["ledger", "verify", "x"], false),
        (&["ledger", "verify", "--acknowledge", "--why", "so"], true),
        (&["ledger", "verify", "--acknowledge"], false),
        (&["ledger", "verify", "--why", "so"], false),
        (&["ledger", "verify", "--acknowledge", "--why", "so", "--head", "a:1"], false),
        (&["ledger", "redact", "x", "/answer", "/undo", "--why", "so"], true),
        (&["ledger", "redact", "x", "--why", "so"], false),
        (&["ledger", "redact", "x", "/answer"], false),
        (&["ledger"], false),
        (&["settle", "x", "accepted", "--why", "seen"], true),
        (&["settle", "x", "accepted"], false),
        (&["settle", "x", "unknown", "--why", "seen"], false),
        (&["reconcile", "--once", "--admin-socket", "s"], true),
        (&["reconcile", "--admin-socket", "s"], true),
        (&["reconcile", "--twice"], false),
        (&[], false),
    ];
    for (args, right) in table {
        let all = std::iter::once(&"takeback").chain(*args);
        assert_eq!(Cli::try_parse_from(all).is_ok(), *right, "{args:?}");
    }
}

#[test]
fn an_entry_is_named_whole() {
    assert!(entry_id("019b0000-0000-7000-8000-000000000000").is_ok());
    for text in ["", "019b", "latest", "\u{1b}[2J"] {
        let failure = entry_id(text).unwrap_err();
        assert_eq!(failure.code, exit::USAGE);
        assert!(!failure.message.contains('\u{1b}'));
    }
}
