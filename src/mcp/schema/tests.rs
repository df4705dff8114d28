use super::*;

fn check(schema: &str, cases: &[(&str, Option<&str>)]) {
    let schema = Doc::parse(schema.to_owned()).unwrap();
    for (value, expected) in cases {
        let doc = Doc::parse((*value).to_owned()).unwrap();
        assert_eq!(fault(schema.root(), doc.root()).as_deref(), *expected, "{value}");
    }
}

#[test]
fn faults_are_found_and_named_by_place() {
    check(
        r#"{"type":"object","required":["name"],"additionalProperties":false,
        "properties":{"name":{"type":"string","minLength":2,"maxLength":4},
        "n":{"type":["integer","null"],"maximum":5},"draft":{"const":true},
        "to":{"type":"array","maxItems":2,"items":{"type":"object","properties":{"x":{"enum":[1,"a"]}}}}}}"#,
        &[
            (r#"{"name":"ab"}"#, None),
            (r#"{"name":"ab","n":5.0,"draft":true,"to":[{"x":1.0},{}]}"#, None),
            (r#"{"name":"ab","n":null}"#, None),
            ("[]", Some("the arguments is not of the type object")),
            ("{}", Some("name is missing")),
            (r#"{"name":1}"#, Some("name is not of the type string")),
            (r#"{"name":"a"}"#, Some("name is below its minLength")),
            (r#"{"name":"abcde"}"#, Some("name is above its maxLength")),
            (r#"{"name":"ab","n":1.5}"#, Some("n is not of the type [integer,null]")),
            (r#"{"name":"ab","n":6}"#, Some("n is above its maximum")),
            (r#"{"name":"ab","draft":false}"#, Some("draft is not the one value that is taken")),
            (r#"{"name":"ab","more":1}"#, Some("more is not taken")),
            (r#"{"name":"ab","to":[{},{},{}]}"#, Some("to is above its maxItems")),
            (
                r#"{"name":"ab","to":[{},{"x":2}]}"#,
                Some("to[1].x is not one of the values that are taken"),
            ),
        ],
    );
}

#[test]
fn numbers_have_bounds() {
    check(
        r#"{"exclusiveMinimum":0,"exclusiveMaximum":10,"multipleOf":2}"#,
        &[
            ("4", None),
            ("\"x\"", None),
            ("0", Some("the arguments is below its exclusiveMinimum")),
            ("10", Some("the arguments is above its exclusiveMaximum")),
            ("3", Some("the arguments is no multiple as it must be")),
        ],
    );
    let unjudged = |rule| format!("the arguments is under {rule}, which is not judged here");
    check(
        r#"{"minimum":0,"exclusiveMinimum":true}"#,
        &[("1", Some(&unjudged("a form of `exclusiveMinimum`")))],
    );
    check(r#"{"multipleOf":0.1}"#, &[("1", Some(&unjudged("a form of `multipleOf`")))]);
    check(
        r#"{"maximum":9007199254740993}"#,
        &[("1", Some(&unjudged("`maximum` of a number this large")))],
    );
}

#[test]
fn references_are_followed_and_those_to_elsewhere_are_said() {
    check(
        r##"{"properties":{"a":{"$ref":"#/$defs/short%20one"},"b":{"$ref":"#"},
        "c":{"$ref":"https://example.com/s"},"d":{"$ref":"#anchor"}},
        "$defs":{"short one":{"type":"string","maxLength":1}}}"##,
        &[
            (r#"{"a":"x","b":{"b":{"a":"y"}}}"#, None),
            (r#"{"b":{"b":{"a":"yy"}}}"#, Some("b.b.a is above its maxLength")),
            (r#"{"c":1}"#, Some("c is under a `$ref` to elsewhere, which is not judged here")),
            (r#"{"d":1}"#, Some("d is under a `$ref` to elsewhere, which is not judged here")),
        ],
    );
    let endless = "the arguments is under more rules than are followed, which is not judged here";
    check(r##"{"$ref":"#"}"##, &[("1", Some(endless))]);
    check(r##"{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}"##, &[("1", Some(endless))]);
}

#[test]
fn forms_are_combined() {
    let text_or_number = r#"[{"type":"string"},{"type":"integer"},{"minimum":5}]"#;
    check(
        &format!(r#"{{"anyOf":{text_or_number}}}"#),
        &[("6", None), ("4.5", Some("the arguments fits none of the forms that are taken"))],
    );
    check(
        &format!(r#"{{"oneOf":{text_or_number}}}"#),
        &[
            ("4", None),
            ("6", Some("the arguments fits more than one form of which it must fit one")),
            ("4.5", Some("the arguments fits none of the forms that are taken")),
        ],
    );
    check(
        r#"{"not":{"required":["x"]},"if":{"required":["a"]},"then":{"required":["b"]},
        "else":{"required":["c"]}}"#,
        &[
            (r#"{"a":1,"b":1}"#, None),
            (r#"{"c":1}"#, None),
            (r#"{"a":1}"#, Some("b is missing")),
            ("{}", Some("c is missing")),
            (r#"{"c":1,"x":1}"#, Some("the arguments has a form that is not taken")),
        ],
    );
}

#[test]
fn objects_and_lists_have_rules() {
    check(
        r#"{"minProperties":1,"maxProperties":2,"propertyNames":{"maxLength":2},
        "dependentRequired":{"a":["b"]},"dependentSchemas":{"c":{"required":["d"]}}}"#,
        &[
            (r#"{"a":1,"b":1}"#, None),
            ("{}", Some("the arguments is below its minProperties")),
            (r#"{"a":1}"#, Some("b is missing")),
            (r#"{"c":1}"#, Some("d is missing")),
            (r#"{"long":1}"#, Some("long is above its maxLength")),
        ],
    );
    check(
        r#"{"prefixItems":[{"type":"string"}],"items":{"type":"integer"},"uniqueItems":true,
        "contains":{"const":1},"maxContains":1}"#,
        &[
            (r#"["x",1,2]"#, None),
            ("[1]", Some("[0] is not of the type string")),
            (r#"["x","y"]"#, Some("[1] is not of the type integer")),
            (r#"["x",1,2,2]"#, Some("the arguments holds a value twice")),
            (r#"["x",2]"#, Some("the arguments does not hold what it must")),
        ],
    );
}

#[test]
fn what_is_not_understood_never_passes_where_it_bears_upon_the_value() {
    let unjudged = |place, rule| format!("{place} is under {rule}, which is not judged here");
    check(
        r#"{"properties":{"a":{"pattern":"^x"},"f":{"format":"email","x-note":1}},
        "unevaluatedProperties":true}"#,
        &[
            (r#"{"a":1,"f":"no mail"}"#, None),
            (r#"{"a":"xy"}"#, Some(&unjudged("a", "the rule `pattern`"))),
        ],
    );
    check(
        r#"{"patternProperties":{"^x":false}}"#,
        &[
            ("{}", None),
            (r#"{"y":1}"#, Some(&unjudged("the arguments", "the rule `patternProperties`"))),
        ],
    );
    check(
        r#"{"unevaluatedProperties":false}"#,
        &[("{}", Some(&unjudged("the arguments", "the rule `unevaluatedProperties`")))],
    );
    // A form that fits surely is enough for `anyOf`; `not` and `oneOf` need all of them judged.
    check(r#"{"anyOf":[{"pattern":"x"},{"type":"string"}]}"#, &[("\"a\"", None)]);
    for rule in [r#"{"not":{"pattern":"x"}}"#, r#"{"oneOf":[{"pattern":"x"},{"type":"string"}]}"#] {
        check(rule, &[("\"a\"", Some(&unjudged("the arguments", "the rule `pattern`")))]);
    }
    for rule in [r#"{"type":"text"}"#, r#"{"type":7}"#] {
        check(rule, &[("1", Some(&unjudged("the arguments", "a `type` that is none")))]);
    }
    check(r#"{"items":[true]}"#, &[("[1]", Some(&unjudged("[0]", "a rule that is no schema")))]);
}
