-- From schema version 2 to 3: the history is chained. The rows that are there stand before the chains.

CREATE TABLE takeback.chain (
  number bigint PRIMARY KEY,
  owner uuid NOT NULL
);
ALTER TABLE takeback.history ADD COLUMN chain bigint;
ALTER TABLE takeback.history ADD COLUMN place bigint;
ALTER TABLE takeback.history ADD COLUMN seal bytea;
