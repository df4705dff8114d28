//! The statements of the [batch](super::batch).

pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
pub(super) const COMMIT: &str = "COMMIT";

/// Checks, renews and locks the lease; no row if it has run out.
pub(super) const LEASE: &str = "UPDATE takeback.owner \
     SET lease_until = clock_timestamp() + $2::float8 * interval '1 millisecond', \
       heartbeat_ms = greatest(heartbeat_ms, $3) \
     WHERE id = $1 AND lease_until > clock_timestamp() RETURNING id";

pub(super) const SUBJECTS: &str = "SELECT id, version, state, attempt, principal, digest, spent_ms, \
     spent_nonce, before, mark, undo_mark, CASE WHEN state = 7 THEN \
     (SELECT h.why FROM takeback.history h WHERE h.seq = version) END \
     FROM takeback.entry WHERE id = ANY($1) ORDER BY id FOR UPDATE";

pub(super) const SPEND: &str = "INSERT INTO takeback.spent (expires_ms, nonce) \
     SELECT t.expires_ms, t.nonce FROM unnest($1::int8[], $2::bytea[]) AS t(expires_ms, nonce) \
     ORDER BY t.expires_ms, t.nonce ON CONFLICT DO NOTHING RETURNING nonce";

pub(super) const UNSPEND: &str = "DELETE FROM takeback.spent WHERE (expires_ms, nonce) IN \
     (SELECT t.expires_ms, t.nonce FROM unnest($1::int8[], $2::bytea[]) AS t(expires_ms, nonce))";

/// In the order of hashes, so that two sidecars do not wait for each other.
pub(super) const CLAIM: &str = "INSERT INTO takeback.finder (hash, entry) \
     SELECT t.hash, t.entry FROM unnest($1::uuid[], $2::uuid[]) AS t(hash, entry) \
     ORDER BY t.hash ON CONFLICT DO NOTHING RETURNING hash";

pub(super) const LOCK: &str =
    "SELECT hash FROM takeback.finder WHERE hash = ANY($1) ORDER BY hash FOR UPDATE";

pub(super) const POINT: &str = "UPDATE takeback.finder f SET entry = t.entry \
     FROM unnest($1::uuid[], $2::uuid[]) AS t(hash, entry) WHERE f.hash = t.hash";

pub(super) const UNCLAIM: &str = "DELETE FROM takeback.finder WHERE hash = ANY($1)";

pub(super) const STEPS: &str = "SELECT nextval('takeback.step') FROM generate_series(1, $1::int4)";

pub(super) const INSERT: &str = "INSERT INTO takeback.entry (id, number, version, finish, state, attempt, \
     owner, began_ms, attempted_ms, finished_ms, delivered, answered, kept, weak, staged, key_sent, \
     twin, principal, key, ledger_id, digest, mark, operation, fingerprint, policy_revision, class, \
     kind, transport, target, task, staged_for, repeats, earlier, spent_ms, spent_nonce, lookup, \
     things) SELECT t.id, t.seq, t.seq, t.seq, 2, 1, $1, t.now_ms, t.now_ms, t.now_ms, false, false, \
     false, t.weak, t.staged, t.key_sent, t.twin, t.principal, t.key, t.ledger_id, t.digest, \
     t.mark, t.operation, t.fingerprint, t.policy_revision, t.class, t.kind, t.transport, t.target, \
     t.task, t.staged_for, t.repeats, t.earlier, t.spent_ms, t.spent_nonce, t.lookup, \
     t.things \
     FROM unnest($2::uuid[], $3::int8[], $4::int8[], $5::bool[], $6::bool[], $7::bool[], \
     $8::uuid[], $9::text[], $10::text[], $11::text[], $12::bytea[], $13::bytea[], $14::text[], \
     $15::bytea[], $16::bytea[], $17::text[], $18::text[], $19::text[], $20::text[], $21::text[], \
     $22::text[], $23::uuid[], $24::uuid[], $25::int8[], $26::bytea[], $27::text[], $28::bytea[]) AS t(id, seq, \
     now_ms, weak, staged, key_sent, twin, principal, key, ledger_id, digest, mark, operation, \
     fingerprint, policy_revision, class, kind, transport, target, task, staged_for, repeats, \
     earlier, spent_ms, spent_nonce, lookup, things)";

pub(super) const FIRST_STEPS: &str = "INSERT INTO takeback.history (seq, entry, at_ms, to_state, \
     attempt, detail, chain, place, seal) \
     SELECT t.seq, t.entry, t.at_ms, 2, 1, t.detail, $5, t.place, t.seal \
     FROM unnest($1::int8[], $2::uuid[], $3::int8[], $4::text[], $6::int8[], $7::bytea[]) \
     AS t(seq, entry, at_ms, detail, place, seal)";

pub(super) const STEP: &str = "INSERT INTO takeback.history (seq, entry, previous, at_ms, from_state, \
     to_state, attempt, cause, who, why, noted, verdict, detail, chain, place, seal) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";

pub(super) const AGAIN: &str = "UPDATE takeback.entry SET state = 2, version = $2, attempt = $3, owner = $4, \
     attempted_ms = $5, key_sent = $6, twin = $7, fingerprint = $8, policy_revision = $9, \
     class = $10, kind = $11, spent_ms = $12, spent_nonce = $13, lookup = $14, \
     before = $15, target = $16, removed = 0, due_ms = NULL, tries = 0, things = $17 WHERE id = $1";

/// Files entries under what they change.
pub(super) const TOUCH: &str = "INSERT INTO takeback.touched (thing, entry) \
     SELECT t.thing, t.entry FROM unnest($1::uuid[], $2::uuid[]) AS t(thing, entry) \
     ORDER BY t.thing, t.entry ON CONFLICT DO NOTHING";

/// An attempt at an entry whose content retention removed: it will have one again.
pub(super) const UNPRUNE: &str = "INSERT INTO takeback.unpruned (entry) \
     SELECT id FROM takeback.entry WHERE id = $1 AND removed = 2 ON CONFLICT DO NOTHING";

pub(super) const IMAGE: &str = "INSERT INTO takeback.image (entry, before) VALUES ($1, $2) \
     ON CONFLICT (entry) DO UPDATE SET before = excluded.before";

pub(super) const UNIMAGE: &str = "DELETE FROM takeback.image WHERE entry = $1";

pub(super) const FINISH: &str = "UPDATE takeback.entry e SET state = t.state, version = t.seq, \
     finish = t.seq, finished_ms = t.at_ms, delivered = false, answered = t.answered, \
     kept = t.kept, cause = t.cause, undo_mark = t.undo_mark, verdict = NULL, \
     due_ms = CASE WHEN t.due_ms IS NOT NULL AND (t.state <> 4 OR e.lookup IS NOT NULL) \
       THEN t.due_ms ELSE e.due_ms END, \
     tries = CASE WHEN t.due_ms IS NOT NULL AND (t.state <> 4 OR e.lookup IS NOT NULL) \
       THEN 0 ELSE e.tries END \
     FROM unnest($1::uuid[], $2::int8[], $3::int2[], $4::int8[], $5::bool[], $6::bool[], \
     $7::text[], $8::bytea[], $9::int8[]) \
     AS t(id, seq, state, at_ms, answered, kept, cause, undo_mark, due_ms) WHERE e.id = t.id";

pub(super) const FINISH_STEPS: &str = "INSERT INTO takeback.history (seq, entry, previous, at_ms, from_state, \
     to_state, attempt, cause, disposition, verdict, upstream_status, upstream_id, undo, undo_mark, \
     compensate, deadline_ms, undo_unavailable, status, headers, body, detail, chain, place, \
     seal, things) SELECT t.seq, t.entry, t.previous, t.at_ms, t.from_state, t.to_state, t.attempt, t.cause, \
     t.disposition, t.verdict, t.upstream_status, t.upstream_id, t.undo, t.undo_mark, t.compensate, \
     t.deadline_ms, t.undo_unavailable, t.status, t.headers, t.body, t.detail, $22, t.place, \
     t.seal, t.things \
     FROM unnest($1::int8[], $2::uuid[], $3::int8[], $4::int8[], $5::int2[], $6::int2[], \
     $7::int4[], $8::text[], $9::text[], $10::text[], $11::int4[], $12::text[], $13::text[], \
     $14::bytea[], $15::text[], $16::int8[], $17::text[], $18::int4[], $19::bytea[], $20::bytea[], \
     $21::text[], $23::int8[], $24::bytea[], $25::bytea[]) \
     AS t(seq, entry, previous, at_ms, from_state, to_state, attempt, cause, disposition, verdict, \
     upstream_status, upstream_id, undo, undo_mark, compensate, deadline_ms, undo_unavailable, \
     status, headers, body, detail, place, seal, things)";

pub(super) const RESTORE: &str = "UPDATE takeback.entry SET state = $2::int2, version = $3, \
     due_ms = CASE WHEN $2::int2 = 4 AND lookup IS NOT NULL THEN $4::int8 END WHERE id = $1";

pub(super) const SETTLE: &str = "UPDATE takeback.entry SET state = $2, version = $3, finished_ms = $4, \
     kept = false, cause = $5, due_ms = NULL WHERE id = $1";

pub(super) const NOTE: &str = "UPDATE takeback.entry SET version = $2, due_ms = $3, \
     tries = coalesce($4::int4, tries + 1), verdict = coalesce($5::text, verdict) WHERE id = $1";

/// What a note decides, after [`NOTE`]. An answer kept of the unknown attempt is no answer to a
/// settled one.
pub(super) const NOTE_SETTLES: &str = "UPDATE takeback.entry SET state = $2, finished_ms = $3, \
     kept = false, cause = $4 WHERE id = $1";

pub(super) const DELIVERED: &str =
    "UPDATE takeback.entry SET delivered = true WHERE id = ANY($1) AND state > 2";

pub(super) const UNDO_TARGETS: &str = "SELECT t.i, x.id, x.version, x.attempt \
     FROM unnest($1::int4[], $2::text[], $3::bytea[]) AS t(i, principal, mark) \
     CROSS JOIN LATERAL (SELECT e.id, e.version, e.attempt FROM takeback.entry e \
     WHERE e.principal = t.principal AND e.undo_mark = t.mark AND e.state = 5 \
       AND e.undo_mark IS NOT NULL ORDER BY e.number DESC LIMIT 1 FOR UPDATE) x";

pub(super) const UNDONE: &str =
    "UPDATE takeback.entry SET state = 7, version = $2, cause = $3, due_ms = NULL WHERE id = $1";

/// Confirmations that ended long ago.
pub(super) const FORGET: &str = "DELETE FROM takeback.spent WHERE (expires_ms, nonce) IN \
     (SELECT expires_ms, nonce FROM takeback.spent WHERE expires_ms < $1 LIMIT 4096)";

/// What a connection that writes prepares.
pub(super) const STATEMENTS: &[&str] = &[
    BEGIN,
    COMMIT,
    LEASE,
    SUBJECTS,
    SPEND,
    UNSPEND,
    CLAIM,
    LOCK,
    POINT,
    UNCLAIM,
    STEPS,
    INSERT,
    FIRST_STEPS,
    TOUCH,
    STEP,
    UNPRUNE,
    AGAIN,
    IMAGE,
    UNIMAGE,
    FINISH,
    FINISH_STEPS,
    RESTORE,
    SETTLE,
    NOTE,
    NOTE_SETTLES,
    DELIVERED,
    UNDO_TARGETS,
    UNDONE,
    FORGET,
];
