-- The ledger in PostgreSQL, schema version 1. Plain SQL: no extension, no procedure, no trigger.
-- Operators may read it while sidecars run:
--   psql "$TAKEBACK_LEDGER" -c 'SELECT * FROM takeback.open_entries'
-- Ask the views (entries, open_entries, history_readable, owners); the tables are laid out for
-- speed and may change with the version. Nobody but takeback may write. History is append-only: the
-- sidecars' role needs SELECT and INSERT on it, and no more.

CREATE TABLE takeback.meta (
  -- Facts about the ledger itself: store (its random id), sealing_key and finder_key (secrets).
  name text PRIMARY KEY,
  value bytea NOT NULL
);

CREATE TABLE takeback.owner (
  -- The sidecars that may have attempts under way. Whose lease has run out is taken for dead: the
  -- next sidecar that looks makes its begun entries unknown and removes the row, under its lock.
  id uuid PRIMARY KEY,
  lease_until timestamptz NOT NULL,  -- by the database's clock
  heartbeat_ms bigint NOT NULL       -- the newest time that this sidecar brought
);

CREATE SEQUENCE takeback.step;       -- numbers the steps of the history; gaps are no loss

CREATE TABLE takeback.entry (
  -- One recorded write.
  id uuid PRIMARY KEY,               -- a UUIDv7, so that ids sort by time
  number bigint NOT NULL,            -- history.seq of its first step: the order of beginning
  version bigint NOT NULL,           -- history.seq of its newest step
  finish bigint NOT NULL,            -- history.seq of the step that says what became of it
  state smallint NOT NULL            -- 2 begun, 3 waiting, 4 unknown: these are open;
    CHECK (state BETWEEN 2 AND 7),   -- 5 accepted, 6 rejected, 7 undone
  before smallint,                   -- its state before the newest attempt; NULL: it is the first
  attempt integer NOT NULL,          -- dispatches so far, from 1
  owner uuid NOT NULL,               -- owner.id of the sidecar that made the newest attempt
  began_ms bigint NOT NULL,          -- of the first attempt; milliseconds since 1970, as all *_ms
  attempted_ms bigint NOT NULL,      -- of the newest attempt
  finished_ms bigint NOT NULL,       -- of the newest finish; means nothing while begun
  delivered boolean NOT NULL,        -- the agent has the whole answer
  answered boolean NOT NULL,         -- the agent was given an answer of the upstream
  kept boolean NOT NULL,             -- the finish holds the answer
  weak boolean NOT NULL,             -- the principal is known by its credential alone
  staged boolean NOT NULL,           -- performed in its draft form
  key_sent boolean NOT NULL,         -- the ledger id went upstream as idempotency key
  twin uuid NOT NULL,                -- nil, or the id: recorded in observe mode beside an open one
  principal text NOT NULL,           -- who called
  key text,                          -- the caller's idempotency key
  ledger_id text,                    -- what goes upstream, where it is neither key nor id
  digest bytea NOT NULL,             -- of the request
  mark bytea NOT NULL,               -- of operation and arguments, as an undo names them
  undo_mark bytea,                   -- the mark of the call that takes this one back
  operation text NOT NULL,
  fingerprint bytea NOT NULL,        -- of the compiled operation
  policy_revision bytea NOT NULL,
  class text NOT NULL,
  kind text NOT NULL,
  transport text NOT NULL,
  target text NOT NULL,              -- method and path, or tool
  task text,                         -- the caller's label
  staged_for text,                   -- the operation whose draft this is
  repeats uuid,                      -- the earlier entry that this call repeats on purpose
  earlier uuid,                      -- the principal's entry with this digest before this one
  spent_ms bigint,                   -- the confirmation that this attempt used up
  spent_nonce bytea,
  cause text,                        -- of the newest finish; means nothing while begun
  lookup text                        -- the resolved read that finds the effect, JSON
);

-- One open entry per principal and request, whatever else goes wrong.
CREATE UNIQUE INDEX one_open ON takeback.entry (digest, principal, staged, twin)
  WHERE state <= 4;
CREATE INDEX open_key ON takeback.entry (key) WHERE state <= 4 AND weak AND key IS NOT NULL;
CREATE INDEX unknown_of ON takeback.entry (principal, operation, number) WHERE state = 4;
CREATE INDEX undo_of ON takeback.entry (principal, undo_mark, number)
  WHERE state = 5 AND undo_mark IS NOT NULL;

CREATE TABLE takeback.finder (
  -- The newest entry of a principal with a key, or with a digest and stage flag; keyed hashes, so
  -- that nobody can make two collide. Its rows are also what two sidecars that begin the same call
  -- at the same time wait for.
  hash uuid PRIMARY KEY,
  entry uuid NOT NULL
);

CREATE TABLE takeback.history (
  -- Append-only: one row per step of an entry, with what a finish said.
  seq bigint PRIMARY KEY,
  entry uuid NOT NULL,
  previous bigint,                   -- seq of this entry's step before
  at_ms bigint NOT NULL,
  from_state smallint,               -- NULL: it did not exist
  to_state smallint NOT NULL,
  attempt integer NOT NULL,
  cause text,
  who text,                          -- a person or a reconciler; NULL: takeback itself
  why text,
  disposition text,                  -- NULL, and all below with it: no finish of an attempt
  verdict text,
  upstream_status integer,
  upstream_id text,
  undo text,                         -- the resolved inverse, JSON
  undo_mark bytea,                   -- entry.mark of the call that takes this one back
  compensate text,                   -- the resolved compensation, JSON
  deadline_ms bigint,
  undo_unavailable text,
  status integer,                    -- the kept answer: status,
  headers bytea,                     -- name, NUL, value, NUL, ...
  body bytea
);

CREATE TABLE takeback.spent (
  -- Confirmations that were used, until they expire.
  expires_ms bigint NOT NULL,
  nonce bytea NOT NULL,
  PRIMARY KEY (expires_ms, nonce)
);

CREATE VIEW takeback.entries AS
SELECT
  e.id AS entry,
  CASE e.state WHEN 2 THEN 'begun' WHEN 3 THEN 'waiting' WHEN 4 THEN 'unknown'
    WHEN 5 THEN 'accepted' WHEN 6 THEN 'rejected' WHEN 7 THEN 'undone' END AS state,
  CASE WHEN e.state > 2 THEN e.cause END AS cause,
  f.verdict, e.class, e.kind, e.operation, e.target, e.transport, e.principal, e.key,
  coalesce(e.ledger_id, e.key, CAST(e.id AS text)) AS ledger_id, e.key_sent, e.task, e.staged_for,
  e.attempt, e.owner, to_timestamp(e.began_ms / 1000.0) AS began,
  CASE WHEN e.state > 2 THEN to_timestamp(e.finished_ms / 1000.0) END AS finished,
  e.delivered, f.upstream_status, f.upstream_id, f.undo, f.compensate,
  to_timestamp(f.deadline_ms / 1000.0) AS deadline, f.undo_unavailable, e.lookup, e.repeats,
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
  h.attempt, h.cause, h.who, h.why, e.operation
FROM takeback.history h LEFT JOIN takeback.entry e ON e.id = h.entry;

CREATE VIEW takeback.owners AS
SELECT o.id AS owner, o.lease_until, o.lease_until > clock_timestamp() AS is_alive,
  to_timestamp(o.heartbeat_ms / 1000.0) AS heartbeat,
  (SELECT count(*) FROM takeback.entry e
    WHERE e.owner = o.id AND e.state <= 4 AND e.state = 2) AS begun
FROM takeback.owner o;
