-- The embedded ledger, schema version 5. Any SQLite tool may read this file while takeback runs:
--   sqlite3 -readonly ledger.db 'SELECT * FROM open_entries'
-- Ask the views (entries, open_entries, history_readable); the tables are laid out for speed and
-- may change with the version. Nobody but takeback may write.

CREATE TABLE meta (
  -- Facts about the ledger itself: store (its random id), sealing_key and finder_key (secrets),
  -- indexed_to and indexed (see finder: how far, how many), heartbeat_ms (the last proof that
  -- it takes writes), chain_from (history.seq of the first row that is linked) and chain_key (the
  -- name of the key that the newest links are made with; empty: there is none), pruned_to and
  -- unpruned_to (how far retention has come, in entry and in unpruned), filed_to (entries up to
  -- there are in runs of touched).
  name TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE entry (
  -- One recorded write. What never changes stands here, and the little that does keeps its size,
  -- so that a step overwrites the row in place.
  number INTEGER PRIMARY KEY,      -- the id's milliseconds * 2^20 + their order: no index needed
  id BLOB NOT NULL,                -- the entry's id, a UUIDv7
  version INTEGER NOT NULL,        -- history.seq of its newest step
  finish INTEGER NOT NULL,         -- history.seq of the step that says what became of it
  state INTEGER NOT NULL           -- 2 begun, 3 waiting, 4 unknown: these are open;
    CHECK (state BETWEEN 2 AND 7), -- 5 accepted, 6 rejected, 7 undone
  attempt INTEGER NOT NULL,        -- dispatches so far, from 1
  began_ms INTEGER NOT NULL,       -- of the first attempt; milliseconds since 1970, as all *_ms
  attempted_ms INTEGER NOT NULL,   -- of the newest attempt
  finished_ms INTEGER NOT NULL,    -- of the newest finish; means nothing while begun
  delivered INTEGER NOT NULL,      -- 1: the agent has the whole answer
  answered INTEGER NOT NULL,       -- 1: the agent was given an answer of the upstream
  kept INTEGER NOT NULL,           -- 1: the finish holds the answer
  weak INTEGER NOT NULL,           -- 1: the principal is known by its credential alone
  staged INTEGER NOT NULL,         -- 1: performed in its draft form
  key_sent INTEGER NOT NULL,       -- 1: the ledger id went upstream as idempotency key
  twin INTEGER NOT NULL,           -- 0, or the number: recorded in observe mode beside an open one
  principal TEXT NOT NULL,         -- who called
  key TEXT,                        -- the caller's idempotency key
  ledger_id TEXT,                  -- what goes upstream, where it is neither key nor id
  digest BLOB NOT NULL,            -- of the request
  mark BLOB NOT NULL,              -- of operation and arguments, as an undo names them
  operation TEXT NOT NULL,
  fingerprint BLOB NOT NULL,       -- of the compiled operation
  policy_revision BLOB NOT NULL,
  class TEXT NOT NULL,
  kind TEXT NOT NULL,
  transport TEXT NOT NULL,
  target TEXT NOT NULL,            -- method and path, or tool
  task TEXT,                       -- the caller's label
  staged_for TEXT,                 -- the operation whose draft this is
  repeats BLOB,                    -- id of the earlier entry with this digest
  spent_ms INTEGER,                -- the confirmation that this attempt used up
  spent_nonce BLOB,
  cause TEXT,                      -- of the newest finish; means nothing while begun
  lookup TEXT,                     -- the resolved read that finds the effect, JSON
  due_ms INTEGER,                  -- when it is looked at next of itself; NULL: not
  tries INTEGER NOT NULL DEFAULT 0, -- looks since the newest attempt
  verdict TEXT,                    -- of what was read since the finish; NULL: the finish's holds
  removed INTEGER NOT NULL DEFAULT 0, -- of what it held of its call: 1 a part was redacted,
                                   -- 2 retention removed it
  things BLOB                      -- keyed hashes of what it changes, 8 bytes each
) STRICT;

-- One open entry per principal and request, whatever else goes wrong.
CREATE UNIQUE INDEX one_open ON entry (digest, principal, staged, twin) WHERE state <= 4;
CREATE INDEX unknown_of ON entry (principal, operation, number) WHERE state = 4;
CREATE INDEX due ON entry (due_ms) WHERE due_ms IS NOT NULL;

CREATE TABLE run (
  -- The runs of touched. Some of a level are merged into one of the next.
  number INTEGER PRIMARY KEY,
  level INTEGER NOT NULL,
  target INTEGER                   -- the run that it is being merged into
) STRICT;

CREATE TABLE touched (
  -- Which entries change a thing: sorted runs of pairs of a keyed hash and entry.number. Those of
  -- entries above meta.filed_to come later, many in one go; entry.things has them.
  run INTEGER NOT NULL,            -- run.number; 0: a pair that is in no run yet, nor in entry.things
  thing INTEGER NOT NULL,          -- the first pair of
  entry INTEGER NOT NULL,
  pairs BLOB NOT NULL,             -- those of this row, 16 bytes each
  PRIMARY KEY (run, thing, entry)
) STRICT, WITHOUT ROWID;

CREATE TABLE alias (
  -- Further keys under which a caller sent the same entry again.
  key TEXT NOT NULL,
  entry INTEGER NOT NULL,          -- entry.number
  PRIMARY KEY (key, entry)
) STRICT, WITHOUT ROWID;

CREATE TABLE finder (
  -- Where an entry with this key, digest or undo mark is: a keyed hash, and entry.number. Rows for
  -- entries above meta.indexed_to come later, many in one go; takeback has those in memory.
  hash INTEGER NOT NULL,
  entry INTEGER NOT NULL,
  PRIMARY KEY (hash, entry)
) STRICT, WITHOUT ROWID;

CREATE TABLE history (
  -- Append-only: one row per step of an entry, with what a finish said. Check it with
  -- `takeback ledger verify`.
  seq INTEGER PRIMARY KEY,
  entry INTEGER NOT NULL,          -- entry.number; 0: of the ledger itself
  previous INTEGER,                -- seq of this entry's step before
  at_ms INTEGER NOT NULL,
  from_state INTEGER,              -- NULL: it did not exist
  to_state INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  cause TEXT,
  who TEXT,                        -- a person or a reconciler; NULL: takeback itself
  why TEXT,
  disposition TEXT,                -- NULL, and all below with it: no finish of an attempt
  verdict TEXT,
  upstream_status INTEGER,
  upstream_id TEXT,
  undo TEXT,                       -- the resolved inverse, JSON
  undo_mark BLOB,                  -- entry.mark of the call that takes this one back
  compensate TEXT,                 -- the resolved compensation, JSON
  deadline_ms INTEGER,
  undo_unavailable TEXT,
  status INTEGER,                  -- the kept answer: status,
  headers BLOB,                    -- name, NUL, value, NUL, ...
  body BLOB,
  noted TEXT,                      -- what was looked at after the finish: lookup, readback
  detail TEXT,                     -- JSON: who allowed a begin, what a finish or a look proved
  seal BLOB,                       -- the row's link in the chain, 32 bytes; then what is needed to
                                   -- check what it holds of the call. NULL: from before the chain
  things BLOB                      -- of a finish with an undo, keyed hashes of what that changes; the
                                   -- first byte is 1 if the first hash is of the upstream's id
) STRICT;

CREATE TABLE image (
  -- The state before a call, where its operation declares that it be read.
  entry INTEGER PRIMARY KEY,       -- entry.number
  before TEXT NOT NULL             -- JSON
) STRICT;

CREATE TABLE unpruned (
  -- Entries that were old enough for retention when they were come by, and could not be removed yet.
  entry INTEGER PRIMARY KEY        -- entry.number
) STRICT;

CREATE TABLE spent (
  -- Confirmations that were used, until they expire.
  expires_ms INTEGER NOT NULL,
  nonce BLOB NOT NULL,
  PRIMARY KEY (expires_ms, nonce)
) STRICT, WITHOUT ROWID;
