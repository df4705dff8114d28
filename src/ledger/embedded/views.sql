-- What is meant to be read with SQL. Made anew by every change of the schema.

DROP VIEW IF EXISTS open_entries;
DROP VIEW IF EXISTS entries;
DROP VIEW IF EXISTS history_readable;

CREATE VIEW entries AS
SELECT
  lower(substr(hex(e.id), 1, 8) || '-' || substr(hex(e.id), 9, 4) || '-'
    || substr(hex(e.id), 13, 4) || '-' || substr(hex(e.id), 17, 4) || '-'
    || substr(hex(e.id), 21)) AS entry,
  CASE e.state WHEN 2 THEN 'begun' WHEN 3 THEN 'waiting' WHEN 4 THEN 'unknown'
    WHEN 5 THEN 'accepted' WHEN 6 THEN 'rejected' WHEN 7 THEN 'undone' END AS state,
  CASE WHEN e.state > 2 THEN e.cause END AS cause,
  coalesce(e.verdict, f.verdict) AS verdict, e.class, e.kind, e.operation, e.target, e.transport, e.principal, e.key,
  coalesce(e.ledger_id, e.key) AS ledger_id, e.key_sent, e.task, e.staged_for, e.attempt,
  e.began_ms, strftime('%Y-%m-%dT%H:%M:%fZ', e.began_ms / 1000.0, 'unixepoch') AS began,
  CASE WHEN e.state > 2 THEN e.finished_ms END AS finished_ms,
  CASE WHEN e.state > 2
    THEN strftime('%Y-%m-%dT%H:%M:%fZ', e.finished_ms / 1000.0, 'unixepoch') END AS finished,
  e.delivered, f.upstream_status, f.upstream_id, f.undo, f.compensate, f.deadline_ms,
  strftime('%Y-%m-%dT%H:%M:%fZ', f.deadline_ms / 1000.0, 'unixepoch') AS deadline,
  f.undo_unavailable, e.lookup, e.due_ms,
  strftime('%Y-%m-%dT%H:%M:%fZ', e.due_ms / 1000.0, 'unixepoch') AS due, e.tries,
  lower(hex(e.repeats)) AS repeats, lower(hex(e.digest)) AS digest, e.number,
  e.state AS state_code
FROM entry e LEFT JOIN history f ON f.seq = e.finish;

CREATE VIEW open_entries AS
SELECT * FROM entries WHERE state_code <= 4;

CREATE VIEW history_readable AS
SELECT
  h.seq, strftime('%Y-%m-%dT%H:%M:%fZ', h.at_ms / 1000.0, 'unixepoch') AS at,
  lower(substr(hex(e.id), 1, 8) || '-' || substr(hex(e.id), 9, 4) || '-'
    || substr(hex(e.id), 13, 4) || '-' || substr(hex(e.id), 17, 4) || '-'
    || substr(hex(e.id), 21)) AS entry,
  CASE h.from_state WHEN 2 THEN 'begun' WHEN 3 THEN 'waiting' WHEN 4 THEN 'unknown'
    WHEN 5 THEN 'accepted' WHEN 6 THEN 'rejected' WHEN 7 THEN 'undone' END AS from_state,
  CASE h.to_state WHEN 2 THEN 'begun' WHEN 3 THEN 'waiting' WHEN 4 THEN 'unknown'
    WHEN 5 THEN 'accepted' WHEN 6 THEN 'rejected' WHEN 7 THEN 'undone' END AS to_state,
  h.attempt, h.cause, h.who, h.why, h.noted, h.verdict, h.detail, e.operation
FROM history h LEFT JOIN entry e ON e.number = h.entry WHERE h.entry <> 0;
