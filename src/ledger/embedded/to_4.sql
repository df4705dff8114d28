-- From schema version 3 to 4: what an entry changes, and what its undo would change. Of the entries that are
-- there neither is known.

ALTER TABLE entry ADD COLUMN things BLOB;
ALTER TABLE history ADD COLUMN things BLOB;
CREATE TABLE touched (
  entry INTEGER PRIMARY KEY,
  things BLOB NOT NULL
) STRICT;
INSERT INTO meta SELECT 'filed_to', coalesce(max(number), 0) FROM entry;
