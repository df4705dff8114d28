-- From schema version 3 to 4: what an entry changes, and what its undo would change. Of the entries that are
-- there neither is known.

ALTER TABLE takeback.entry ADD COLUMN things bytea;
ALTER TABLE takeback.history ADD COLUMN things bytea;
CREATE TABLE takeback.touched (
  thing uuid NOT NULL,
  entry uuid NOT NULL,
  PRIMARY KEY (thing, entry)
);
