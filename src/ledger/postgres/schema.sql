-- The ledger in PostgreSQL, schema version 4. Plain SQL: no extension, no procedure, no trigger.
-- Operators may read it while sidecars run:
--   psql "$TAKEBACK_LEDGER" -c 'SELECT * FROM takeback.open_entries'
-- Ask the views (entries, open_entries, history_readable, owners); the tables are laid out for
-- speed and may change with the version. Nobody but takeback may write. History is append-only: the
-- sidecars' role needs SELECT and INSERT on it, and UPDATE only for a retention and for redactions.

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

CREATE TABLE takeback.chain (
  -- The chains over the history: one for each sidecar that wrote it. None is ever removed.
  number bigint PRIMARY KEY,         -- from 1, without gaps
  owner uuid NOT NULL                -- owner.id of the sidecar, while it lives
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
  lookup text,                       -- the resolved read that finds the effect, JSON
  due_ms bigint,                     -- when it is looked at next of itself; NULL: not
  tries integer NOT NULL DEFAULT 0,  -- looks since the newest attempt
  verdict text,                      -- of what was read since the finish; NULL: the finish's holds
  removed smallint NOT NULL DEFAULT 0, -- of what it held of its call: 1 a part was redacted,
                                     -- 2 retention removed it
  things bytea                       -- keyed hashes of what it changes, 16 bytes each: touched.thing
);

-- One open entry per principal and request, whatever else goes wrong.
CREATE UNIQUE INDEX one_open ON takeback.entry (digest, principal, staged, twin)
  WHERE state <= 4;
CREATE INDEX open_key ON takeback.entry (key) WHERE state <= 4 AND weak AND key IS NOT NULL;
CREATE INDEX unknown_of ON takeback.entry (principal, operation, number) WHERE state = 4;
CREATE INDEX undo_of ON takeback.entry (principal, undo_mark, number)
  WHERE state = 5 AND undo_mark IS NOT NULL;

CREATE INDEX due ON takeback.entry (due_ms) WHERE due_ms IS NOT NULL;

CREATE TABLE takeback.finder (
  -- The newest entry of a principal with a key, or with a digest and stage flag; keyed hashes, so
  -- that nobody can make two collide. Its rows are also what two sidecars that begin the same call
  -- at the same time wait for.
  hash uuid PRIMARY KEY,
  entry uuid NOT NULL
);

CREATE TABLE takeback.history (
  -- Append-only: one row per step of an entry, with what a finish said. Check it with
  -- `takeback ledger verify`.
  seq bigint PRIMARY KEY,
  entry uuid NOT NULL,               -- nil: of a chain itself
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
  body bytea,
  noted text,                        -- what was looked at after the finish: lookup, readback
  detail text,                       -- JSON: who allowed a begin, what a finish or a look proved
  chain bigint,                      -- chain.number; NULL: from before there were chains
  place bigint,                      -- the row's place in it, from 1, without gaps
  seal bytea,                        -- its link, 32 bytes; then what commits to what it holds of
                                     -- the call
  things bytea                       -- of a finish with an undo, keyed hashes of what that changes;
                                     -- the first byte is 1 if the first hash is of the upstream's id
);

CREATE TABLE takeback.touched (
  -- Which entries change a thing.
  thing uuid NOT NULL,               -- a keyed hash
  entry uuid NOT NULL,               -- entry.id
  PRIMARY KEY (thing, entry)
);

CREATE TABLE takeback.image (
  -- The state before a call, where its operation declares that it be read.
  entry uuid PRIMARY KEY,
  before text NOT NULL               -- JSON
);

CREATE TABLE takeback.retention (
  -- How far retention has come: one row. Whoever removes holds its lock.
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  pruned_to uuid NOT NULL,           -- in entry.id
  unpruned_to uuid NOT NULL          -- in unpruned.entry
);

INSERT INTO takeback.retention (pruned_to, unpruned_to)
  VALUES ('00000000-0000-0000-0000-000000000000', '00000000-0000-0000-0000-000000000000');

CREATE TABLE takeback.unpruned (
  -- Entries that were old enough for retention when they were come by, and could not be removed yet.
  entry uuid PRIMARY KEY
);

CREATE TABLE takeback.spent (
  -- Confirmations that were used, until they expire.
  expires_ms bigint NOT NULL,
  nonce bytea NOT NULL,
  PRIMARY KEY (expires_ms, nonce)
);
