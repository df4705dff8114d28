-- From schema version 2 to 3: the history is chained. The rows that are there stand before the chain.

ALTER TABLE history ADD COLUMN seal BLOB;
ALTER TABLE entry ADD COLUMN removed INTEGER NOT NULL DEFAULT 0;
CREATE TABLE unpruned (
  entry INTEGER PRIMARY KEY
) STRICT;
