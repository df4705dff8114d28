//! A page of `tools/list` with what the policy says of each tool in it (standards MCP-24 to MCP-28).
//!
//! Declared tools gain `_meta["anvil/effect_class"]`, `_meta["anvil/effect_contract"]` and, where
//! one operation stands behind the tool, `_meta["anvil/operation_id"]`; their annotations are
//! corrected to the class; and a `confirm` input is added where the tool is confirmed by the caller
//! and has none. Everything else of the page stays byte for byte, undeclared tools, cursors and
//! order included. Pages are never merged.

use crate::contract::class::{Class, Level};
use crate::contract::json::{Edits, Kind as JsonKind, Value, write_string};

use super::catalog::CONFIRM;

/// What is said of one declared tool.
#[derive(Clone, Debug)]
pub struct Said {
    /// The class that it is served as.
    pub class: Class,
    /// The contract, a JSON object.
    pub contract: String,
    /// The operation, if it is one.
    pub operation: Option<String>,
    /// The level whose confirmation fits into an argument; `None` adds no argument.
    pub confirm: Option<Level>,
}

/// The changes to a page. `result` is the result of `tools/list`; `say` tells what is said of the
/// tool with this entry, `None` for one that is not declared.
pub fn decorate(result: Value<'_>, mut say: impl FnMut(Value<'_>) -> Option<Said>) -> Edits {
    let mut edits = Edits::new();
    let Some(tools) = result.get("tools") else { return edits };
    for tool in tools.elements() {
        if tool.kind() == JsonKind::Object
            && let Some(said) = say(tool)
        {
            decorate_tool(tool, &said, &mut edits);
        }
    }
    edits
}

fn decorate_tool(tool: Value<'_>, said: &Said, edits: &mut Edits) {
    let mut class = String::new();
    write_string(said.class.as_str(), &mut class);
    let mut meta = vec![
        ("anvil/effect_class", class.as_str()),
        ("anvil/effect_contract", said.contract.as_str()),
    ];
    let mut operation = String::new();
    if let Some(id) = &said.operation {
        write_string(id, &mut operation);
        meta.push(("anvil/operation_id", &operation));
    }
    let hints: &[(&str, &str)] = match said.class {
        Class::Read => &[("readOnlyHint", "true")],
        Class::Reversible => &[("readOnlyHint", "false"), ("destructiveHint", "false")],
        Class::Compensable | Class::Irreversible => {
            &[("readOnlyHint", "false"), ("destructiveHint", "true")]
        }
    };
    let mut added = Vec::new();
    for (name, members) in [("_meta", meta.as_slice()), ("annotations", hints)] {
        match tool.get(name) {
            Some(held) if held.kind() == JsonKind::Object => edits.members(held, &[], members),
            Some(_) | None => added.push((name, object(members))),
        }
    }
    if let Some(level) = said.confirm
        && let Some(schema) = tool.get("inputSchema")
        && schema.kind() == JsonKind::Object
    {
        let input = confirm_input(level);
        let input = [(CONFIRM, input)];
        match schema.get("properties") {
            Some(properties) if properties.kind() == JsonKind::Object => {
                if properties.get(CONFIRM).is_none() {
                    edits.members(properties, &[], &input);
                }
            }
            Some(_) => {}
            None => edits.members(schema, &[], &[("properties", &object(&input))]),
        }
    }
    let added: Vec<(&str, &str)> = added.iter().map(|(name, json)| (*name, &**json)).collect();
    edits.members(tool, &[], &added);
}

/// The schema of the argument that takes a confirmation.
fn confirm_input(level: Level) -> &'static str {
    match level {
        Level::Caller => {
            r#"{"type":["boolean","string"],"description":"Set to true to confirm this action, or to the token of a refusal. Leave it out otherwise."}"#
        }
        Level::Challenge | Level::Human | Level::None => {
            r#"{"type":"string","description":"The token of the refusal of this very call, to confirm it. Leave it out otherwise."}"#
        }
    }
}

fn object(members: &[(&str, &str)]) -> String {
    let mut out = String::from("{");
    for (position, (name, json)) in members.iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        write_string(name, &mut out);
        out.push(':');
        out.push_str(json);
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::json::Doc;

    fn said(class: Class, confirm: Option<Level>) -> Said {
        let contract = format!(r#"{{"class":"{class}"}}"#);
        Said { class, contract, operation: Some("op".to_owned()), confirm }
    }

    fn decorated(page: &str, class: Class, confirm: Option<Level>) -> String {
        let doc = Doc::parse(page.to_owned()).unwrap();
        let edits = decorate(doc.root(), |tool| {
            let name = tool.get("name")?.as_str()?;
            (name == "known").then(|| said(class, confirm))
        });
        String::from_utf8(edits.apply(doc.text())).unwrap()
    }

    #[test]
    fn mcp_26_27_undeclared_tools_and_the_rest_of_the_page_stay_byte_for_byte() {
        let page = r#"{ "tools":[{"name":"other" ,"x":1e2}, {"name":"known","inputSchema":{}}],
            "nextCursor":"", "ttlMs":5,"_meta":{"v":1}}"#;
        let text = decorated(page, Class::Irreversible, None);

        assert!(text.starts_with(r#"{ "tools":[{"name":"other" ,"x":1e2}, {"name":"known","#));
        assert!(
            text.ends_with("],\n            \"nextCursor\":\"\", \"ttlMs\":5,\"_meta\":{\"v\":1}}")
        );
        assert_eq!(
            decorated(page.replace("known", "un").as_str(), Class::Read, None),
            page.replace("known", "un")
        );
    }

    #[test]
    fn mcp_24_annotations_follow_the_class_and_other_hints_stay() {
        let page = r#"{"tools":[{"name":"known","annotations":{"title":"T","readOnlyHint":true,"idempotentHint":true}}]}"#;
        let cases = [
            (Class::Read, r#"{"title":"T","readOnlyHint":true,"idempotentHint":true}"#),
            (
                Class::Reversible,
                r#"{"title":"T","readOnlyHint":false,"idempotentHint":true,"destructiveHint":false}"#,
            ),
            (
                Class::Compensable,
                r#"{"title":"T","readOnlyHint":false,"idempotentHint":true,"destructiveHint":true}"#,
            ),
            (
                Class::Irreversible,
                r#"{"title":"T","readOnlyHint":false,"idempotentHint":true,"destructiveHint":true}"#,
            ),
        ];
        for (class, expected) in cases {
            let text = decorated(page, class, None);
            assert!(text.contains(&format!("\"annotations\":{expected}")), "{text}");
            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            let meta = &json["tools"][0]["_meta"];
            assert_eq!(meta["anvil/effect_class"], class.as_str());
            assert_eq!(meta["anvil/operation_id"], "op");
            assert_eq!(meta["anvil/effect_contract"]["class"], class.as_str());
        }
    }

    #[test]
    fn a_confirm_input_is_added_where_the_tool_has_none() {
        let schemas = [
            (r#"{"type":"object","properties":{"a":{}},"required":["a"]}"#, true),
            (r#"{"type":"object"}"#, true),
            (r#"{"properties":{}}"#, true),
            (r#"{"properties":{"confirm":{"type":"number"}}}"#, false),
        ];
        for (schema, is_added) in schemas {
            let page = format!(r#"{{"tools":[{{"inputSchema":{schema},"name":"known"}}]}}"#);
            let text = decorated(&page, Class::Irreversible, Some(Level::Challenge));
            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            let schema = &json["tools"][0]["inputSchema"];
            let kind = &schema["properties"]["confirm"]["type"];
            assert_eq!(*kind, if is_added { "string" } else { "number" }, "{text}");
        }
    }
}
