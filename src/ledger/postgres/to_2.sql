-- From schema version 1 to 2: what is due and when, notes of the history, states before calls.

ALTER TABLE takeback.entry ADD COLUMN due_ms bigint;
ALTER TABLE takeback.entry ADD COLUMN tries integer NOT NULL DEFAULT 0;
ALTER TABLE takeback.entry ADD COLUMN verdict text;
CREATE INDEX due ON takeback.entry (due_ms) WHERE due_ms IS NOT NULL;
-- What could be looked up before is due at once.
UPDATE takeback.entry SET due_ms = finished_ms
  WHERE state <= 4 AND state = 4 AND lookup IS NOT NULL;
ALTER TABLE takeback.history ADD COLUMN noted text;
ALTER TABLE takeback.history ADD COLUMN detail text;
CREATE TABLE takeback.image (
  entry uuid PRIMARY KEY,
  before text NOT NULL
);
