-- From schema version 1 to 2: what is due and when, notes of the history, states before calls.

ALTER TABLE entry ADD COLUMN due_ms INTEGER;
ALTER TABLE entry ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE entry ADD COLUMN verdict TEXT;
CREATE INDEX due ON entry (due_ms) WHERE due_ms IS NOT NULL;
-- What could be looked up before is due at once.
UPDATE entry SET due_ms = finished_ms WHERE state <= 4 AND state = 4 AND lookup IS NOT NULL;
ALTER TABLE history ADD COLUMN noted TEXT;
ALTER TABLE history ADD COLUMN detail TEXT;
CREATE TABLE image (
  entry INTEGER PRIMARY KEY,
  before TEXT NOT NULL
) STRICT;
