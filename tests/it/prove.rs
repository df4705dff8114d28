//! `takeback prove` where its own words are not enough: with a database, and over HTTP/2.

use std::process::Command;

use serde_json::Value;

use crate::support::postgres::Database;

/// The rows that it gives, and its exit code.
fn prove(arguments: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_takeback"))
        .args(["prove", "--format", "json"])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code(), rows, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Of all rows of a fault, the sum of a column.
fn sum(rows: &[Value], fault: &str, column: &str) -> u64 {
    let of_fault = rows.iter().filter(|row| row["fault"] == fault);
    of_fault.map(|row| row[column].as_u64().unwrap()).sum()
}

#[test]
fn f9_no_second_effect_when_the_database_dies_at_a_commit_before_or_after_it_is_made() {
    let database = Database::new();
    let url = database.url();

    let (code, rows, said) =
        prove(&["--writes", "48", "--fault", "database-killed", "--ledger", &url]);

    assert_eq!(code, Some(0), "{said}{rows:#?}");
    assert_eq!(rows.len(), 4);
    assert_eq!(sum(&rows, "database-killed", "intended"), 48);
    assert_eq!(sum(&rows, "database-killed", "more"), 0);
    assert_ne!(sum(&rows, "database-killed", "settled"), 0, "it never died: {rows:#?}");
}

#[test]
fn f7_no_second_effect_when_a_goaway_leaves_the_stream_out_or_includes_it() {
    let faults = ["--fault", "goaway-before", "--fault", "goaway-after"];

    let (code, rows, said) = prove(&[&["--writes", "32"], &faults[..]].concat());

    assert_eq!(code, Some(0), "{said}{rows:#?}");
    assert_eq!(rows.len(), 8);
    for fault in ["goaway-before", "goaway-after"] {
        assert_eq!(sum(&rows, fault, "intended"), 32);
        assert_eq!(sum(&rows, fault, "more"), 0);
    }
    // What the gateway has an effect of and no answer for is lost; nothing else settles or refuses it.
    let lost = sum(&rows, "goaway-after", "settled") + sum(&rows, "goaway-after", "unknown");
    assert_ne!(lost, 0, "{rows:#?}");
}

#[test]
fn a_database_that_cannot_be_made_to_die_is_no_proof() {
    let (code, rows, said) = prove(&["--fault", "database-killed"]);

    assert_eq!((code, rows.len()), (Some(64), 0));
    assert!(said.contains("needs a ledger in a database on this machine"), "{said}");
}
