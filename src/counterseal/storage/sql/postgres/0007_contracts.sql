-- Contracts as they were first registered: what a later version is compared with.

CREATE TABLE contracts (
  tool TEXT COLLATE "C" NOT NULL,
  version TEXT COLLATE "C" NOT NULL,
  contract_hash TEXT COLLATE "C" NOT NULL,
  record TEXT NOT NULL,              -- JSON: the whole contract
  held TEXT NOT NULL,                -- JSON: the changes that a person has to accept
  registered_at DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (tool, version, contract_hash)
);
