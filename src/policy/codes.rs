//! What each finding's code means, in a sentence or two: `takeback check --explain CODE`.

/// What a code means and what to do; `None` for a code that there is not.
pub fn explain_code(code: &str) -> Option<&'static str> {
    CODES.iter().find(|(known, _)| *known == code).map(|(_, text)| *text)
}

/// Every code that `check` can give, with its explanation, sorted by code.
pub fn codes() -> &'static [(&'static str, &'static str)] {
    CODES
}

const CODES: &[(&str, &str)] = &[
    (
        "effect/action_ref_outside_flow",
        "A compensation of type `action_ref` names an action of the same flow. In a policy \
         there is none; use `type: tool`, or `compensate`.",
    ),
    (
        "effect/before_missing",
        "A mapping reads the state before the call (`before.<path>`), and the operation does \
         not declare that it be read. Declare `before` beside `effect`.",
    ),
    (
        "effect/carrier_name",
        "A carrier in a query parameter or an argument needs that parameter's name; with an \
         empty one the key would go nowhere.",
    ),
    (
        "effect/carrier_pointer",
        "The key replaces one member of the body. A pointer to the whole body, or through \
         `-`, names no member.",
    ),
    (
        "effect/carrier_too_short",
        "A call without a key of its own is keyed by its entry id, 36 characters. A place \
         that holds fewer would make such calls fail; say `type: unsupported` if the \
         upstream's keys are too short.",
    ),
    (
        "effect/carrier_transport",
        "A header, a query parameter or a body member is a place in an HTTP request, an \
         argument one in a tool call.",
    ),
    (
        "effect/carrier_undeclared",
        "The catalog declares no such parameter or member. A key where the vendor does not \
         look protects nothing, and reads as if it did.",
    ),
    (
        "effect/carrier_unsupported",
        "No key goes upstream. After an answer is lost the call is never sent again by \
         itself: a lookup or a person settles it.",
    ),
    (
        "effect/class_conflicts_reversible",
        "`reversible` (AIR) and `reversibility` (car-ir) say what `class` says. `read` and \
         `reversible` are reversible, the others are not. Keep one word.",
    ),
    (
        "effect/class_on_read",
        "An operation of `kind: read` changes nothing, so nothing about it can be taken back. \
         Either the kind or the class is wrong; until that is settled it is served as \
         irreversible.",
    ),
    (
        "effect/compensable_without_compensate",
        "A compensable effect names the call that cancels it. Without one nothing takes it \
         back: `class: irreversible`.",
    ),
    (
        "effect/compensate_on_class",
        "A compensation belongs to a compensable effect, or beside the inverse of a \
         reversible one, for when the inverse's deadline has passed.",
    ),
    (
        "effect/compensate_twice",
        "`compensation` is car-ir's form of `compensate`, and one effect is cancelled in one \
         way. Keep the one that names its operation and where its arguments come from.",
    ),
    (
        "effect/confirmation_for_draft",
        "A staged call runs the draft, and is confirmed through this operation. The draft \
         asks for a confirmation and the operation for none, so it is served with the draft's \
         level; say so with `confirm`.",
    ),
    (
        "effect/credential_mapped",
        "Credentials and control headers are the caller's to give with each call. A mapping \
         that copies one would keep it, report it, or send it where it was not meant to go.",
    ),
    (
        "effect/deadline_in_past_at_answer",
        "The answer gives epoch seconds. Read as milliseconds that is a time in 1970, and the \
         undo would never be offered. Say `unit: s`.",
    ),
    (
        "effect/deadline_path",
        "A deadline is a time in the answer, `response.<path>`, and not optional: without it \
         an undo would be offered for ever.",
    ),
    (
        "effect/deadline_shape",
        "A deadline has exactly one form: `within_ms`, a whole number of milliseconds from 1 \
         to 2^53-1, or `at`, a path of the answer.",
    ),
    (
        "effect/draft_handle",
        "The handle is what `promote` and `discard` name the draft by; it comes from the \
         draft's answer and is not optional.",
    ),
    (
        "effect/draft_on_read",
        "A draft is the form of an effect that can be thrown away, and a read has no effect. \
         Remove it, or correct the class.",
    ),
    (
        "effect/follow_up_is_read",
        "What takes an effect back changes something, and a read cannot. Name the operation \
         that does; if the one that is named writes, its own class is wrong.",
    ),
    (
        "effect/follow_up_other_transport",
        "The follow-up is on another transport than the operation. A caller that reached the \
         one must be able to dial the other.",
    ),
    (
        "effect/inverse_on_non_reversible",
        "An inverse leaves the world as it was, and with it the class is `reversible`. On a \
         read or an irreversible effect it contradicts the class; the operation is served as \
         irreversible.",
    ),
    (
        "effect/inverse_repeats_request",
        "The inverse sends the values that the call itself sent, so it restores the state \
         after the call and not the one before. Map the old values from the answer, or do not \
         call it an inverse.",
    ),
    (
        "effect/lookup_key_unused",
        "A lookup by key finds the effect by the key. Map one of its arguments to \
         `idempotency_key`, or look up `by: id`.",
    ),
    (
        "effect/lookup_not_read",
        "A lookup is made by the sidecar itself, perhaps several times and perhaps long after \
         the call. It must change nothing; name a read.",
    ),
    (
        "effect/lookup_on_read",
        "A read leaves nothing to look up: if its answer is lost, it is made again. Remove \
         the lookup, or correct the class.",
    ),
    (
        "effect/lookup_without_idempotency_key",
        "A lookup by key needs an operation that sends its key upstream. Declare \
         `idempotency`, or look up `by: id`.",
    ),
    (
        "effect/mapping_conflict",
        "Two arguments write the same place of the follow-up, or one writes inside the other, \
         and which of them holds would be a guess. Keep one.",
    ),
    (
        "effect/mapping_missing_required",
        "Every required input of the follow-up needs a value, for a call with a gap is \
         another call. Map it from the request or the answer, or give a literal: `{ const: \
         ... }`.",
    ),
    (
        "effect/mapping_required_optional",
        "A path that ends with `?` may name nothing, and then the argument is left out; a \
         required input cannot be.",
    ),
    (
        "effect/mapping_sensitive",
        "What `sensitive` names is never kept or reported, so a call that is made of it can never be \
         offered, and nothing takes the effect back. Map something else, such as an id of the answer, \
         or call the effect irreversible.",
    ),
    (
        "effect/mapping_sets_safety_control",
        "The confirmation and the key of a follow-up are given by whoever makes it. A mapping \
         that sets one would confirm in the caller's name.",
    ),
    (
        "effect/mapping_type_mismatch",
        "The value is of a type that the target does not take. An integer is a number; \
         nothing else converts. Types that are not declared are not judged.",
    ),
    (
        "effect/mapping_unknown_argument",
        "The target has no such input. Over HTTP an input is named `path.NAME`, `query.NAME`, \
         `header.NAME`, `body` or `body.a.b`; a flat name goes where exactly one input has \
         it, and without a catalog only path parameters are known.",
    ),
    (
        "effect/operation_missing",
        "A follow-up, lookup or draft names an operation that no policy file declares. \
         Declare it (all files of the directory count), or correct the name.",
    ),
    (
        "effect/operation_self",
        "An operation cannot take itself back, unless its arguments are the call's own, \
         exchanged (a move).",
    ),
    (
        "effect/path_invalid",
        "A path is `request`, `response` or `idempotency_key` with dotted names and `[n]`, \
         and `?` at the end for an optional one. There are no wildcards, filters or quotes; a \
         literal is `{ const: value }`.",
    ),
    (
        "effect/path_root_not_allowed",
        "Each place reads what exists by then: a draft reads the request, a lookup by key \
         cannot read the answer that it replaces, only lookups read the key.",
    ),
    (
        "effect/path_unresolved",
        "The request or the answer has no such member: its schema declares its members and \
         not this one, or the path template has no such parameter.",
    ),
    (
        "effect/path_unverified",
        "The catalog's schema is open at this point, so that nothing can be said before a \
         call is made. If the path names nothing then, the follow-up is not offered, and the \
         report says why.",
    ),
    (
        "effect/promote_milder",
        "Promoting a draft performs the real effect. An operation of a milder class would \
         report it as less than it is.",
    ),
    (
        "effect/read_class_on_mutation",
        "`class: read` beside a kind that changes something. Until that is settled it is \
         served as irreversible.",
    ),
    (
        "effect/read_class_wildcard",
        "A method that writes, declared a read, and matched with a `{*rest}`: a spelling that \
         the upstream folds would pass as a read. Name each path.",
    ),
    (
        "effect/read_confirmed",
        "A read says `confirm`, or is `destructive` where that asks for a confirmation. Reads are sent \
         as they come, so nobody would be asked. What somebody wants to be asked about is a write: it \
         is served as irreversible, under the confirmation that it names.",
    ),
    (
        "effect/read_on_unsafe_method",
        "A POST, or another method that usually writes, is declared a read: such calls are \
         neither recorded nor confirmed. Right for searches and renderers.",
    ),
    (
        "effect/reversible_without_inverse",
        "A reversible effect names the call that leaves the world as it was. car-ir's \
         `reversible` means restoring a scope, which no call does.",
    ),
    (
        "effect/schema_pin",
        "The tool's schema in the catalog is not the one that was pinned. Somebody must look \
         at what changed before the contract is trusted again.",
    ),
    (
        "effect/too_many_arguments",
        "A call that follows has at most 256 arguments: they are held against each other here, \
         and filled one by one with every call. No request of the vendors' documents has so many \
         inputs; map an object as a whole.",
    ),
    (
        "effect/tool_without_thing",
        "An undo is `superseded` when something came after it that changed the same thing. A \
         tool's thing is known by the arguments that a `before` is given, by what an undo is \
         told of the answer, or by `upstream_id`. This one has none of them, so its undo is \
         offered whatever came after.",
    ),
    (
        "policy/ambiguous_scalar",
        "YAML 1.1, YAML 1.2 and JSON readers read this plain value differently. Quote it if \
         it is text; else write it as JSON does.",
    ),
    (
        "policy/catalog",
        "A catalog is an OpenAPI 3.0 or 3.1 document, or a saved tools/list answer, below the \
         policy directory.",
    ),
    (
        "policy/catalog_effect_missing",
        "The catalog declares effects with `x-obol-effect`, and not for this operation, whose \
         method writes. It is undeclared.",
    ),
    (
        "policy/catalog_left_out",
        "A path of the catalog is no template, a method is none of OpenAPI's, or a tool has no \
         name of its own. Nothing can declare such a call, so it is undeclared: a read if it is a \
         GET, else irreversible.",
    ),
    (
        "policy/catalog_operation",
        "The catalog has no operation with this `operationId`, or has several. Name one that \
         it has once, or the request itself: `match: { http: ... }`.",
    ),
    (
        "policy/catalog_required",
        "`match: { operation_id: ... }` is looked up in the OpenAPI catalog of the same file, \
         and this file names none: `catalog: { openapi: FILE }`.",
    ),
    (
        "policy/condition",
        "A condition under `where` has exactly one test: `equals`, `one_of`, `exists: true` \
         or `absent: true`.",
    ),
    (
        "policy/condition_never",
        "No request can satisfy the test: path, query and header values are text, and a path \
         never names null.",
    ),
    (
        "policy/confirm_argument",
        "`confirm_argument` names a tool's argument. Over HTTP the caller's word is the \
         header `Effect-Confirm: true`.",
    ),
    (
        "policy/duplicate_member",
        "Two readers of a file may disagree about which of two equal names holds, and a \
         reviewer may see the other one. Keep one.",
    ),
    (
        "policy/duplicate_operation",
        "An id is declared once, in one file; which of two declarations holds would be a \
         guess. Rename one, or make them variants of one target with `where` under ids of \
         their own.",
    ),
    (
        "policy/duration",
        "A duration is a whole number and a unit without a space: `5000ms`, `90s`, `30m`, \
         `24h` or `7d`.",
    ),
    (
        "policy/empty",
        "The directory declares no operation. Policies in its folders are policies of their own: \
         name one of them.",
    ),
    (
        "policy/findings_left_out",
        "So many findings are kept of one policy, errors apart from others; there are more than these.",
    ),
    (
        "policy/irreversible_unconfirmed",
        "An irreversible write goes through without anybody being asked. Sometimes that is \
         meant; say so in a comment.",
    ),
    (
        "policy/literal_pattern",
        "A path has `*` or `:name` in it, which other programs take for \"anything\". Here it is text, \
         so that the calls that are meant stay undeclared: write `{name}` for a segment, `{*name}` for \
         all that follow.",
    ),
    (
        "policy/match_http",
        "`match: { http: ... }` is a method in upper case, a space and a path template: `POST \
         /repos/{owner}/issues`. CONNECT and TRACE are refused before any policy is asked.",
    ),
    (
        "policy/match_target",
        "An operation has exactly one target: `http`, `tool` or `operation_id`. What is \
         reached in two ways is two operations.",
    ),
    (
        "policy/match_tool",
        "A tool is matched by its exact name, as the gateway lists it in `tools/list`. An \
         empty one is no name.",
    ),
    (
        "policy/missing_member",
        "A member that is required here is not there. The help names it, and `takeback \
         schema` lists what each place takes.",
    ),
    (
        "policy/not_in_catalog",
        "The file has a catalog, and it has no such operation: no call may ever be this one. \
         Compare the method, the path and the tool's name with the catalog; if it is old, \
         renew it.",
    ),
    (
        "policy/operation_id",
        "An id is 1 to 200 bytes without white space and does not start with `_`: those are \
         takeback's own, such as `_undeclared`.",
    ),
    (
        "policy/out_of_range",
        "A number is not in the range that its place has, or is no whole number. The help \
         gives the range.",
    ),
    (
        "policy/overlap",
        "A call can be two operations, and no rule separates them. At run time the one with \
         the more severe class stands.",
    ),
    (
        "policy/overlap_unchecked",
        "There are too many templates, or values of conditions, to compare them all. At run time overlaps are decided \
         all the same.",
    ),
    (
        "policy/plain_form_milder",
        "A variant asks for a value, and the form without conditions is milder: a value that the \
         upstream takes for the variant's, spelt in a way that is not told from any other, is served as \
         the milder one. Turn it round, with the conditions on the milder operation, or add a variant as \
         severe with `exists: true`. A JSON null counts as absent, as it does for every path (`absent` \
         holds of it and `exists` does not).",
    ),
    (
        "policy/rejected_if",
        "`rejected_if` says which accepted answers mean that nothing was done. Without \
         assertions it would say so of every answer, and every call could run again.",
    ),
    ("policy/schema_sha256", "A pin is 64 hexadecimal digits in lower case."),
    (
        "policy/syntax",
        "The file is no YAML or JSON, or holds more than one document. Everything up to the \
         place was understood; look at the brackets, quotes and indentation before it.",
    ),
    (
        "policy/template",
        "A template is `/` and segments: fixed text, `{name}` with text beside it, or \
         `{*rest}` at the end.",
    ),
    (
        "policy/timeout_beyond_grace",
        "The sidecar's end waits for calls under way no longer than `drain.grace_ms`. A write \
         that takes longer is cut then, and its outcome is unknown until a lookup or a person \
         settles it.",
    ),
    (
        "policy/too_deep",
        "Files are at most 64 levels deep, and no member of a policy is a tenth of that: \
         there is a bracket or an indent too many.",
    ),
    (
        "policy/too_large",
        "A policy file is at most 1 MiB, so that one file can be reviewed. Split it; every \
         file of the directory is read.",
    ),
    (
        "policy/too_many_conditions",
        "One `where` has at most 32 conditions: every call of the target is held against each, \
         and each variant against its siblings. Name the members that tell this operation from \
         them, not all that a call of it has.",
    ),
    (
        "policy/too_many_elements",
        "`one_of`, `sensitive` and `vary_on` have at most 256 elements, because every call is \
         held against each of them. Ask for less (`exists`), or hide and tell apart by a member \
         that holds the others.",
    ),
    (
        "policy/too_many_operations",
        "One policy is at most 20,000 operations: each has metric series and memory of its own. \
         Declare what agents call, or give each gateway a sidecar with a policy of its own.",
    ),
    (
        "policy/too_many_variants",
        "One target is at most 256 operations, because every call of it is held against each \
         of them. Tell them apart by path, or let one operation take the strictest of them.",
    ),
    (
        "policy/undeclared_weaker_than_declared",
        "Undeclared calls would need less than a declared one does, so leaving an operation \
         out would weaken it. The stricter level holds.",
    ),
    (
        "policy/unknown_member",
        "The lists of members are closed: a misspelt name would be a rule that does not hold. \
         Correct the name; `takeback schema` lists what each place takes.",
    ),
    (
        "policy/unknown_word",
        "The value is none of the words that can stand here, and a word that is not \
         understood must not pass for the mildest. The help lists them.",
    ),
    (
        "policy/unreachable",
        "Another operation of the same target stands for every call that this one matches, no \
         call can satisfy its conditions, or every path of its template is refused before it is \
         matched. It is never served.",
    ),
    (
        "policy/unreadable",
        "The directory or a file of it cannot be read: it is not there, this user may not, it \
         is no regular file, or no UTF-8. A policy is served whole or not at all.",
    ),
    (
        "policy/unseen_character",
        "The text has a character that is not shown, or that changes the order in which the rest \
         is shown: what a reviewer approves would not be what is compiled. In a quoted text such \
         a character can be written as an escape.",
    ),
    (
        "policy/upgrade_refused",
        "`allow: { upgrade: true }` says that the operation opens another protocol. What is \
         said over such a connection cannot be looked into, so it is refused with 501; send \
         it to the gateway directly.",
    ),
    (
        "policy/upgrade_under_wildcard",
        "A GET on this path opens another protocol (a shell, a tunnel), and a wildcard takes \
         it for a read. Upgrades are refused, so nothing runs; declare what is read by its \
         own path.",
    ),
    (
        "policy/vary_on",
        "`vary_on` adds headers to what tells two calls apart. Credentials are in it by way \
         of the principal, and controls never are, for they do not change what a call does.",
    ),
    (
        "policy/version",
        "This reads version 1 of the policy format: `version: 1`. A later version may mean \
         other things by the same words.",
    ),
    (
        "policy/weaker_confirmation",
        "The operation's own `confirm` is weaker than its class, or the file's defaults, ask \
         for. It holds; remove it, or say in a comment why less will do.",
    ),
    (
        "policy/wrong_type",
        "The value is of another type than its place takes. Text that looks like a number or \
         a truth value is quoted; numbers and truth values are not.",
    ),
    (
        "policy/yaml_feature",
        "Anchors, aliases, tags, merge keys and directives let a value stand elsewhere than \
         where it is read. Write it out.",
    ),
    (
        "spec/absent_requires_delete",
        "EffectSpec AbsentRequiresDelete: that something is absent afterwards proves a \
         deletion and nothing else. Assert what is there, or correct `kind`.",
    ),
    (
        "spec/accepted_not_success",
        "A 3xx or 4xx status is listed as accepted. A redirect or a client error proves no \
         effect; leave it in neither list, and the outcome is unknown until it is looked up.",
    ),
    (
        "spec/assertion_name_too_long",
        "EffectSpec AssertionNameTooLong: receipts carry the name of each assertion, at most \
         256 characters of it.",
    ),
    (
        "spec/claim_unreachable",
        "No stage makes a claim that `completion.acceptable` names, so the plan can never \
         complete. Let a stage claim it, or accept what the stages claim.",
    ),
    (
        "spec/deadline_zero",
        "`deadline_s: 0` has passed when the plan starts, so that nothing is ever looked at. \
         Give the seconds that its last stage may need.",
    ),
    (
        "spec/delete_not_destructive",
        "`destructive` is a signal of its own and is not derived from the kind; it decides \
         about the confirmation. A delete usually has it: say `true`, or `false` if nothing \
         is lost.",
    ),
    (
        "spec/destructive_read",
        "A read destroys nothing. One of the two is wrong: the kind, or `destructive`.",
    ),
    (
        "spec/duplicate_assertion_name",
        "EffectSpec DuplicateAssertionName: results carry the name and nothing else, so that \
         two of one name could not be told apart.",
    ),
    (
        "spec/duplicate_stage_id",
        "EffectSpec DuplicateStageId: the evidence of a stage is kept under its id, which is \
         unique in its plan.",
    ),
    (
        "spec/empty_assertion_name",
        "EffectSpec EmptyAssertionName: results carry the name and nothing else. Give it one.",
    ),
    (
        "spec/empty_completion_predicate",
        "EffectSpec EmptyCompletionPredicate: without an acceptable claim the plan could \
         never finish. Name at least one, and its trust.",
    ),
    (
        "spec/empty_stage_id",
        "EffectSpec EmptyStageId: the evidence of a stage is kept under its id. Give it one.",
    ),
    (
        "spec/equals_request_outside_immediate",
        "EffectSpec EqualsRequestOutsideImmediate: the request is no longer in memory in a \
         later stage, nor when a lookup is made.",
    ),
    (
        "spec/external_reversible",
        "A send, a notification or a payment has left the vendor's state; what takes it back \
         leaves a trace.",
    ),
    (
        "spec/invalid_header_name",
        "EffectSpec InvalidHeaderName: a header's name is letters, digits and `-`; what is \
         written here could never be sent or found.",
    ),
    (
        "spec/invalid_pointer",
        "EffectSpec InvalidPointer: a pointer is empty or starts with `/`, and `~` is \
         followed by 0 or 1.",
    ),
    (
        "spec/invalid_selector_fields",
        "EffectSpec InvalidSelectorFields: bodies take a `pointer`, headers a `header`, the \
         status neither, and none takes another's.",
    ),
    (
        "spec/invalid_status",
        "EffectSpec InvalidStatus: a status is from 100 to 599; another would never be \
         matched.",
    ),
    (
        "spec/invalid_status_range",
        "EffectSpec InvalidStatusRange: `start` is not above `end`, and both are from 100 to \
         599; another range would never be matched.",
    ),
    (
        "spec/mutation_without_assertions",
        "EffectSpec MutationWithoutAssertions: a write proves something, or says why it \
         cannot with `no_evidence`.",
    ),
    (
        "spec/never_passes",
        "An operand is composite, or there is none; selected values are scalars, so the \
         assertion can never pass.",
    ),
    (
        "spec/no_evidence_on_read",
        "`no_evidence` says why nothing proves an effect, and a read has none. Remove it, or \
         correct the kind.",
    ),
    (
        "spec/no_evidence_with_verification",
        "`no_evidence` says that nothing proves the effect, and the verification beside it \
         says what does. Keep one; `verification: {type: none}` goes with `no_evidence`.",
    ),
    (
        "spec/overlapping_status",
        "EffectSpec OverlappingStatus: a status is matched by two entries, across the lists \
         or within one.",
    ),
    (
        "spec/plan_not_evaluated",
        "Events are not heard here: a stage that waits for one is reported as not evaluated, \
         and proves nothing.",
    ),
    (
        "spec/plan_without_stages",
        "EffectSpec PlanWithoutStages: a plan without stages looks at nothing. Write \
         `verification: {type: none}`, and `no_evidence` with the reason.",
    ),
    (
        "spec/pointer_too_long",
        "EffectSpec PointerTooLong: a pointer is at most 512 bytes. Point at a member that is \
         nearer to the top.",
    ),
    (
        "spec/probe",
        "EffectSpec Probe: the target is a slug, the path starts with `/`, at most 8 \
         parameters with names of their own, `decisive_negative` is 404 or 410, and an MCP \
         probe takes nothing from the request.",
    ),
    (
        "spec/probe_target_elsewhere",
        "A probe target that says more than its `type` is another host than the upstream. \
         Probes go to the upstream only.",
    ),
    (
        "spec/probe_target_undeclared",
        "A readback goes only where `probe_targets` says. A stage whose target is not \
         declared is not evaluated.",
    ),
    (
        "spec/protected_header",
        "A header of the connection, the message, a credential or a control cannot carry a \
         key: it is made, replaced or removed on the way. Name the header in which this API \
         takes one.",
    ),
    (
        "spec/rejected_not_definite",
        "408, 409, 425 and 429 may come after part of the work was done. Listed as definitely \
         rejected, they let the call run again; in neither list, the outcome is unknown until \
         it is looked up.",
    ),
    (
        "spec/remote_mcp_cannot_attest",
        "EffectSpec RemoteMcpCannotAttest: a remote server's own claim proves nothing about \
         what it did. Use `trust: gateway_observed_only`.",
    ),
    (
        "spec/request_selector_outside_immediate",
        "EffectSpec RequestSelectorOutsideImmediate: the request is no longer in memory in a \
         later stage, nor when a lookup is made.",
    ),
    (
        "spec/selector_unresolved",
        "The catalog declares nothing where the selector looks, and what finds nothing proves \
         nothing. Correct the pointer; if the catalog is old, renew it.",
    ),
    (
        "spec/stage_after_deadline",
        "A stage starts after the plan's deadline, so that it is never looked at. `after_s` \
         is at most `deadline_s`.",
    ),
    (
        "spec/tautology",
        "Every assertion repeats the status, which dispatch has classified already: a green \
         check that proves nothing.",
    ),
    (
        "spec/too_many_allowed_values",
        "EffectSpec TooManyAllowedValues: `one_of` takes at most 32 values. So many say \
         little about one effect; assert what this call asked for with `equals_request`.",
    ),
    (
        "spec/too_many_assertions",
        "EffectSpec TooManyAssertions: at most 32 in one list, because each is evaluated \
         while the caller waits.",
    ),
    (
        "spec/too_many_stages",
        "EffectSpec TooManyStages: a plan has at most 8, because each may be a call to the \
         upstream.",
    ),
    (
        "spec/unsupported_plan_version",
        "EffectSpec UnsupportedPlanVersion: plans of `schema_version: 1` are read. A later \
         version may mean other things by the same words.",
    ),
    (
        "spec/unsupported_spec_version",
        "Specs of `schema_version: 1` are read. A later version may mean other things by the \
         same words.",
    ),
    (
        "spec/untrusted_cannot_verify",
        "EffectSpec UntrustedCannotVerify: a claim whose source nobody trusts completes \
         nothing. Name a source that can be trusted, such as `gateway_observed`.",
    ),
    (
        "spec/unverified",
        "Nothing is declared that proves the effect. The verdict of such calls is \
         inconclusive, never verified.",
    ),
    (
        "spec/verification_value_out_of_bounds",
        "EffectSpec VerificationValueOutOfBounds: a literal is at most 4096 bytes and 8 \
         levels, because it is compared while the caller waits.",
    ),
    (
        "spec/webhook_without_event_types",
        "EffectSpec WebhookWithoutEventTypes: a stage that waits for events says for which. \
         List those that carry the evidence.",
    ),
];
