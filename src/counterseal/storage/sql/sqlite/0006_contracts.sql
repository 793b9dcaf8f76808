-- Contracts as they were first registered: what a later version is compared with.

CREATE TABLE contracts (
  tool TEXT NOT NULL,
  version TEXT NOT NULL,
  contract_hash TEXT NOT NULL,
  record TEXT NOT NULL,              -- JSON: the whole contract
  held TEXT NOT NULL,                -- JSON: the changes that a person has to accept
  registered_at REAL NOT NULL,
  PRIMARY KEY (tool, version, contract_hash)
) WITHOUT ROWID;
