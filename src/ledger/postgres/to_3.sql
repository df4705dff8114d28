-- From schema version 2 to 3: the history is chained. The rows that are there stand before the chains.

CREATE TABLE takeback.chain (
  number bigint PRIMARY KEY,
  owner uuid NOT NULL
);
ALTER TABLE takeback.history ADD COLUMN chain bigint;
ALTER TABLE takeback.history ADD COLUMN place bigint;
ALTER TABLE takeback.history ADD COLUMN seal bytea;
ALTER TABLE takeback.entry ADD COLUMN removed smallint NOT NULL DEFAULT 0;
CREATE TABLE takeback.retention (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  pruned_to uuid NOT NULL,
  unpruned_to uuid NOT NULL
);
INSERT INTO takeback.retention (pruned_to, unpruned_to)
  VALUES ('00000000-0000-0000-0000-000000000000', '00000000-0000-0000-0000-000000000000');
CREATE TABLE takeback.unpruned (
  entry uuid PRIMARY KEY
);
