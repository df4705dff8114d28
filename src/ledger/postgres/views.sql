-- What is meant to be read with SQL. Made anew by every change of the schema.

DROP VIEW IF EXISTS takeback.open_entries;
DROP VIEW IF EXISTS takeback.entries;
DROP VIEW IF EXISTS takeback.history_readable;
DROP VIEW IF EXISTS takeback.owners;

CREATE VIEW takeback.entries AS
SELECT
  e.id AS entry,
  CASE e.state WHEN 2 THEN 'begun' WHEN 3 THEN 'waiting' WHEN 4 THEN 'unknown'
    WHEN 5 THEN 'accepted' WHEN 6 THEN 'rejected' WHEN 7 THEN 'undone' END AS state,
  CASE WHEN e.state > 2 THEN e.cause END AS cause,
  coalesce(e.verdict, f.verdict) AS verdict, e.class, e.kind, e.operation, e.target, e.transport, e.principal, e.key,
  coalesce(e.ledger_id, e.key, CAST(e.id AS text)) AS ledger_id, e.key_sent, e.task, e.staged_for,
  e.attempt, e.owner, to_timestamp(e.began_ms / 1000.0) AS began,
  CASE WHEN e.state > 2 THEN to_timestamp(e.finished_ms / 1000.0) END AS finished,
  e.delivered, f.upstream_status, f.upstream_id, f.undo, f.compensate,
  to_timestamp(f.deadline_ms / 1000.0) AS deadline, f.undo_unavailable, e.lookup,
  to_timestamp(e.due_ms / 1000.0) AS due, e.tries, e.repeats,
  encode(e.digest, 'hex') AS digest, e.state AS state_code
FROM takeback.entry e LEFT JOIN takeback.history f ON f.seq = e.finish;

CREATE VIEW takeback.open_entries AS
SELECT * FROM takeback.entries WHERE state_code <= 4;

CREATE VIEW takeback.history_readable AS
SELECT
  h.seq, to_timestamp(h.at_ms / 1000.0) AS at, h.entry,
  CASE h.from_state WHEN 2 THEN 'begun' WHEN 3 THEN 'waiting' WHEN 4 THEN 'unknown'
    WHEN 5 THEN 'accepted' WHEN 6 THEN 'rejected' WHEN 7 THEN 'undone' END AS from_state,
  CASE h.to_state WHEN 2 THEN 'begun' WHEN 3 THEN 'waiting' WHEN 4 THEN 'unknown'
    WHEN 5 THEN 'accepted' WHEN 6 THEN 'rejected' WHEN 7 THEN 'undone' END AS to_state,
  h.attempt, h.cause, h.who, h.why, h.noted, h.verdict, h.detail, e.operation
FROM takeback.history h LEFT JOIN takeback.entry e ON e.id = h.entry
WHERE h.entry <> '00000000-0000-0000-0000-000000000000';

CREATE VIEW takeback.owners AS
SELECT o.id AS owner, o.lease_until, o.lease_until > clock_timestamp() AS is_alive,
  to_timestamp(o.heartbeat_ms / 1000.0) AS heartbeat,
  (SELECT count(*) FROM takeback.entry e
    WHERE e.owner = o.id AND e.state <= 4 AND e.state = 2) AS begun
FROM takeback.owner o;
