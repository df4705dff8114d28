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
        "A carrier in a query parameter or an argument needs that parameter's name.",
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
        "`compensation` is car-ir's form of `compensate`. Keep one of them.",
    ),
    (
        "effect/confirmation_for_draft",
        "A staged call confirms its draft through this operation. It is served with the \
         draft's level.",
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
    ("effect/draft_on_read", "A read has no draft form."),
    ("effect/follow_up_is_read", "What takes an effect back changes something. A read cannot."),
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
        "A lookup by key finds the effect by the key; an argument must be mapped to \
         `idempotency_key`.",
    ),
    (
        "effect/lookup_not_read",
        "A lookup is made on its own, perhaps several times. It must change nothing.",
    ),
    ("effect/lookup_on_read", "A read leaves nothing to look up."),
    (
        "effect/lookup_without_idempotency_key",
        "A lookup by key needs an operation that sends its key upstream. Declare \
         `idempotency`, or look up `by: id`.",
    ),
    ("effect/mapping_conflict", "Two arguments write the same place, or one inside the other."),
    (
        "effect/mapping_missing_required",
        "Every required input of the follow-up needs a value. A call with a gap is another \
         call.",
    ),
    (
        "effect/mapping_required_optional",
        "A path that ends with `?` may name nothing, and then the argument is left out; a \
         required input cannot be.",
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
    ("effect/operation_missing", "No policy file declares the operation that is named."),
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
        "The schema is open at this point, so nothing can be said before a call is made.",
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
    ("policy/catalog_operation", "The catalog has no operation with this `operationId`."),
    (
        "policy/catalog_required",
        "`match: { operation_id: ... }` is looked up in the file's OpenAPI catalog.",
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
        "Two readers of a file may disagree about which of two equal names holds. Keep one.",
    ),
    ("policy/duplicate_operation", "An id is declared once, in one file."),
    ("policy/duration", "A duration is a whole number and a unit: `ms`, `s`, `m`, `h` or `d`."),
    (
        "policy/empty",
        "The directory declares no operation. Policies in its folders are policies of their own: \
         name one of them.",
    ),
    (
        "policy/irreversible_unconfirmed",
        "An irreversible write goes through without anybody being asked. Sometimes that is \
         meant; say so in a comment.",
    ),
    (
        "policy/match_http",
        "`match: { http: ... }` is a method in upper case, a space and a path template.",
    ),
    (
        "policy/match_target",
        "An operation has exactly one target: `http`, `tool` or `operation_id`.",
    ),
    ("policy/match_tool", "A tool is matched by its exact name."),
    ("policy/missing_member", "A required member is not there."),
    (
        "policy/not_in_catalog",
        "The file has a catalog, and it has no such operation: no call may ever be this one.",
    ),
    (
        "policy/operation_id",
        "An id is 1 to 200 bytes without white space and does not start with `_`.",
    ),
    ("policy/out_of_range", "A number is not in its range."),
    (
        "policy/overlap",
        "A call can be two operations, and no rule separates them. At run time the one with \
         the more severe class stands.",
    ),
    (
        "policy/overlap_unchecked",
        "There are too many templates to compare them all. At run time overlaps are decided \
         all the same.",
    ),
    ("policy/rejected_if", "`rejected_if` without assertions would hold on every answer."),
    ("policy/schema_sha256", "A pin is 64 hexadecimal digits in lower case."),
    ("policy/syntax", "The file is no YAML or JSON."),
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
    ("policy/too_deep", "Files are at most 64 levels deep."),
    (
        "policy/too_large",
        "A policy file is at most 1 MiB. Split it; every file of the directory is read.",
    ),
    ("policy/too_many_variants", "One target is at most 256 operations."),
    (
        "policy/undeclared_weaker_than_declared",
        "Undeclared calls would need less than a declared one does, so leaving an operation \
         out would weaken it. The stricter level holds.",
    ),
    (
        "policy/unknown_member",
        "The lists of members are closed: a misspelt name would be a rule that does not hold.",
    ),
    ("policy/unknown_word", "The value is none of the words that can stand here."),
    (
        "policy/unreachable",
        "Another operation of the same target stands for every call that this one matches, or \
         no call can satisfy its conditions. It is never served.",
    ),
    ("policy/unreadable", "The directory or a file cannot be read."),
    (
        "policy/upgrade_refused",
        "Upgraded connections cannot be looked into and are refused with 501.",
    ),
    (
        "policy/upgrade_under_wildcard",
        "A GET on this path opens another protocol (a shell, a tunnel), and a wildcard takes \
         it for a read. Upgrades are refused, so nothing runs; declare what is read by its \
         own path.",
    ),
    (
        "policy/vary_on",
        "Credentials are part of every digest by way of the principal, and controls never \
         are.",
    ),
    ("policy/version", "This reads version 1 of the policy format."),
    (
        "policy/weaker_confirmation",
        "The operation's own level is weaker than its class or the file's defaults ask for.",
    ),
    ("policy/wrong_type", "The value is of another type."),
    (
        "policy/yaml_feature",
        "Anchors, aliases, tags, merge keys and directives let a value stand elsewhere than \
         where it is read. Write it out.",
    ),
    (
        "spec/absent_requires_delete",
        "EffectSpec AbsentRequiresDelete: `absent` proves a deletion and nothing else.",
    ),
    (
        "spec/accepted_not_success",
        "A 3xx or 4xx status is listed as accepted. A redirect or a client error proves no \
         effect.",
    ),
    ("spec/assertion_name_too_long", "EffectSpec AssertionNameTooLong: at most 256 characters."),
    (
        "spec/claim_unreachable",
        "No stage makes a claim that `completion.acceptable` names, so the plan can never \
         complete.",
    ),
    ("spec/deadline_zero", "`deadline_s: 0` has passed when the plan starts."),
    (
        "spec/delete_not_destructive",
        "`destructive` is a signal of its own and is not derived. A delete usually has it.",
    ),
    ("spec/destructive_read", "A read destroys nothing."),
    (
        "spec/duplicate_assertion_name",
        "EffectSpec DuplicateAssertionName: results carry the name and nothing else.",
    ),
    ("spec/duplicate_stage_id", "EffectSpec DuplicateStageId."),
    ("spec/empty_assertion_name", "EffectSpec EmptyAssertionName."),
    (
        "spec/empty_completion_predicate",
        "EffectSpec EmptyCompletionPredicate: the plan could never finish.",
    ),
    ("spec/empty_stage_id", "EffectSpec EmptyStageId."),
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
    ("spec/invalid_header_name", "EffectSpec InvalidHeaderName."),
    (
        "spec/invalid_pointer",
        "EffectSpec InvalidPointer: a pointer is empty or starts with `/`, and `~` is \
         followed by 0 or 1.",
    ),
    (
        "spec/invalid_selector_fields",
        "EffectSpec InvalidSelectorFields: bodies take a pointer, headers a header, the \
         status neither.",
    ),
    ("spec/invalid_status", "EffectSpec InvalidStatus: 100 to 599."),
    (
        "spec/invalid_status_range",
        "EffectSpec InvalidStatusRange: `start` is not above `end`, both from 100 to 599.",
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
    ("spec/no_evidence_on_read", "A read has no effect to prove."),
    ("spec/no_evidence_with_verification", "`no_evidence` goes with `verification: {type: none}`."),
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
    ("spec/plan_without_stages", "EffectSpec PlanWithoutStages: write `{type: none}`."),
    ("spec/pointer_too_long", "EffectSpec PointerTooLong: at most 512 bytes."),
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
         key.",
    ),
    (
        "spec/rejected_not_definite",
        "408, 409, 425 and 429 may come after part of the work was done.",
    ),
    (
        "spec/remote_mcp_cannot_attest",
        "EffectSpec RemoteMcpCannotAttest: a remote server's own claim proves nothing.",
    ),
    (
        "spec/request_selector_outside_immediate",
        "EffectSpec RequestSelectorOutsideImmediate: the request is no longer in memory in a \
         later stage, nor when a lookup is made.",
    ),
    (
        "spec/selector_unresolved",
        "The catalog declares nothing where the selector looks; what finds nothing proves \
         nothing.",
    ),
    ("spec/stage_after_deadline", "A stage starts after the plan's deadline."),
    (
        "spec/tautology",
        "Every assertion repeats the status, which dispatch has classified already: a green \
         check that proves nothing.",
    ),
    ("spec/too_many_allowed_values", "EffectSpec TooManyAllowedValues: at most 32."),
    ("spec/too_many_assertions", "EffectSpec TooManyAssertions: at most 32 in one list."),
    ("spec/too_many_stages", "EffectSpec TooManyStages: at most 8."),
    ("spec/unsupported_plan_version", "EffectSpec UnsupportedPlanVersion: 1 is read."),
    ("spec/unsupported_spec_version", "`schema_version: 1` is read."),
    ("spec/untrusted_cannot_verify", "EffectSpec UntrustedCannotVerify."),
    (
        "spec/unverified",
        "Nothing is declared that proves the effect. The verdict of such calls is \
         inconclusive, never verified.",
    ),
    (
        "spec/verification_value_out_of_bounds",
        "EffectSpec VerificationValueOutOfBounds: a literal is at most 4096 bytes and 8 \
         levels.",
    ),
    ("spec/webhook_without_event_types", "EffectSpec WebhookWithoutEventTypes."),
];
