-- From schema version 4 to 5: what entries change is found by an index. The rows of touched_4 are
-- moved into it.

ALTER TABLE touched RENAME TO touched_4;
CREATE TABLE run (
  number INTEGER PRIMARY KEY,
  level INTEGER NOT NULL,
  target INTEGER   
) STRICT;

CREATE TABLE touched (
  run INTEGER NOT NULL,
  thing INTEGER NOT NULL,
  entry INTEGER NOT NULL,
  pairs BLOB NOT NULL,
  PRIMARY KEY (run, thing, entry)
) STRICT, WITHOUT ROWID;

