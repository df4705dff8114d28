use std::path::PathBuf;

use takeback::contract::json::Doc;
use takeback::contract::path::{Request, Scope};
use takeback::policy::{self, Choice, Snapshot};

fn policies() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("policies")
}

fn snapshot(name: &str) -> Snapshot {
    policy::load(&policies().join(name)).snapshot.unwrap()
}

/// The operation that a request with this body is, with its class and its confirmation.
fn chosen(snapshot: &Snapshot, method: &str, path: &str, body: &str) -> String {
    let found = snapshot.find_http(&method.parse().unwrap(), path);
    let head = Doc::parse(r#"{"path":{},"query":{},"header":{}}"#.to_owned()).unwrap();
    let body = (!body.is_empty()).then(|| Doc::parse(body.to_owned()).unwrap());
    let request =
        Request::Http { head: head.root(), body: body.as_ref().map(Doc::root), is_opaque: false };
    described(policy::choose(&found, &Scope { before: None, request, response: None, key: None }))
}

fn described(choice: Choice<'_>) -> String {
    match choice {
        Choice::Undeclared { strictest } => {
            format!("undeclared, {}", strictest.map_or("-", |level| level.as_str()))
        }
        Choice::Declared(served) => {
            let operation = &served.operation;
            format!("{}: {}, {}", operation.id.as_str(), operation.class, operation.confirm)
        }
    }
}

#[test]
fn github_mini_tells_its_http_operations_apart() {
    let snapshot = snapshot("github-mini");
    let issue = "/repos/octo/hello/issues/1";
    let releases = "/repos/octo/hello/releases";
    let release = "/repos/octo/hello/releases/7";
    let cases = [
        ("GET", "/repos/octo/hello", "", "github.repos.get: read, none"),
        ("GET", "/repos/octo/hello/issues", "", "github.issues.list: read, none"),
        ("GET", issue, "", "github.issues.get: read, none"),
        ("PATCH", issue, r#"{"state":"closed"}"#, "github.issues.close: compensable, none"),
        ("PATCH", issue, r#"{"state":"open"}"#, "github.issues.reopen: compensable, none"),
        (
            "PATCH",
            issue,
            r#"{"state":"closed","title":"t"}"#,
            "github.issues.update: irreversible, challenge",
        ),
        ("PATCH", issue, r#"{"state":"gone"}"#, "github.issues.update: irreversible, challenge"),
        ("PATCH", issue, "", "github.issues.update: irreversible, challenge"),
        (
            "DELETE",
            "/repos/octo/hello/issues/comments/7",
            "",
            "github.comments.delete: irreversible, challenge",
        ),
        ("POST", releases, r#"{"draft":true}"#, "github.releases.draft: reversible, none"),
        (
            "POST",
            releases,
            r#"{"draft":"true"}"#,
            "github.releases.create: irreversible, challenge",
        ),
        ("POST", releases, "{}", "github.releases.create: irreversible, challenge"),
        (
            "PATCH",
            release,
            r#"{"draft":false}"#,
            "github.releases.publish: irreversible, challenge",
        ),
        ("PATCH", release, "{}", "github.releases.update: irreversible, challenge"),
        ("PUT", issue, "{}", "undeclared, -"),
    ];

    for (method, path, body, expected) in cases {
        assert_eq!(chosen(&snapshot, method, path, body), expected, "{method} {path} {body}");
    }
}

#[test]
fn github_mini_declares_every_tool_of_the_gateway() {
    let snapshot = snapshot("github-mini");
    let tool = |name: &str, arguments: &str| {
        let arguments = Doc::parse(arguments.to_owned()).unwrap();
        let group = snapshot.find_tool(name).unwrap_or_else(|| panic!("{name} is not declared"));
        let request = Request::Arguments(arguments.root());
        let scope = Scope { before: None, request, response: None, key: None };
        described(policy::choose(&policy::Found::One(group), &scope))
    };

    for (name, expected) in [
        ("github__get_issue", "github.mcp.issues.get: read, none"),
        ("github__list_comments", "github.mcp.comments.list: read, none"),
        ("github__get_release_by_tag", "github.mcp.releases.by_tag: read, none"),
        ("github__create_comment", "github.mcp.comments.create: reversible, none"),
        ("github__delete_comment", "github.mcp.comments.delete: irreversible, challenge"),
        ("github__create_issue", "github.mcp.issues.create: compensable, none"),
        ("github__close_issue", "github.mcp.issues.close: compensable, none"),
        ("github__reopen_issue", "github.mcp.issues.reopen: compensable, none"),
        ("github__create_release", "github.mcp.releases.create: irreversible, challenge"),
        ("github__publish_release", "github.mcp.releases.publish: irreversible, challenge"),
        ("github__delete_release", "github.mcp.releases.delete: irreversible, challenge"),
    ] {
        assert_eq!(tool(name, "{}"), expected);
    }
    let drafted = tool("github__create_release", r#"{"draft":true}"#);
    assert_eq!(drafted, "github.mcp.releases.draft: reversible, none");
}

/// Corpus rows G19, G20, G21, G27 and G28. Form bodies read as objects of strings.
#[test]
fn stripe_tells_two_undos_of_one_request_apart() {
    let snapshot = snapshot("stripe");
    let intents = "/v1/payment_intents";
    let cases = [
        ("POST", "/v1/charges", r#"{"amount":"5"}"#, "stripe.charges.create: compensable, none"),
        ("POST", intents, r#"{"amount":"5"}"#, "stripe.payment_intents.create: compensable, none"),
        (
            "POST",
            intents,
            r#"{"amount":"5","confirm":"true"}"#,
            "stripe.payment_intents.create_and_confirm: compensable, none",
        ),
        ("POST", intents, r#"{"confirm":"1"}"#, "undeclared, none"),
        ("POST", intents, r#"{"confirm":"true","capture_method":"manual"}"#, "undeclared, none"),
        (
            "POST",
            "/v1/payment_intents/pi_1/cancel",
            "",
            "stripe.payment_intents.cancel: irreversible, challenge",
        ),
        ("POST", "/v1/invoices/in_1/finalize", "", "stripe.invoices.finalize: compensable, none"),
        ("DELETE", "/v1/customers/cus_1", "", "stripe.customers.delete: irreversible, challenge"),
    ];

    for (method, path, body, expected) in cases {
        assert_eq!(chosen(&snapshot, method, path, body), expected, "{method} {path} {body}");
    }
}
