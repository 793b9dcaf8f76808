-- The whole of today's schema, for reading. A file is made by the numbered migrations beside it; a
-- test proves that they come to the same.
--
-- What a store remembers. Every key begins with the tenant, so that a tenant can be moved elsewhere.
--
-- Moments are REAL seconds since the epoch, as they came: a rounded one would not compare equal to
-- what the runtime holds. JSON is text, so that it can be read with any tool. Where rows are wide, a
-- table keeps its rowid: rows are added at the end, and only a narrow index is spread out.

CREATE TABLE migrations (
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  checksum TEXT NOT NULL,
  applied_at REAL NOT NULL
);

CREATE TABLE runs (
  tenant TEXT NOT NULL,
  run_id TEXT NOT NULL,
  started_at REAL NOT NULL,
  objective TEXT,
  allowed_tools TEXT,                -- JSON; NULL: every tool
  budgets TEXT NOT NULL,             -- JSON
  deadline REAL,
  config TEXT NOT NULL,              -- JSON
  turn INTEGER NOT NULL,
  changes INTEGER NOT NULL,          -- how often the state was changed, whatever the key
  pins TEXT NOT NULL,                -- JSON: tool to version
  seen TEXT NOT NULL,                -- JSON: resource to version
  refused TEXT NOT NULL,             -- JSON: tools whose refusals are being counted
  PRIMARY KEY (tenant, run_id)
) WITHOUT ROWID;

CREATE TABLE run_state (
  tenant TEXT NOT NULL,
  run_id TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT,                        -- JSON; NULL: forgotten, but its version goes on
  version INTEGER NOT NULL,
  untrusted INTEGER NOT NULL,
  PRIMARY KEY (tenant, run_id, key)
) WITHOUT ROWID;

CREATE TABLE implicit_runs (
  tenant TEXT NOT NULL,
  agent TEXT NOT NULL,
  user TEXT NOT NULL,                -- '' stands for nobody
  run_id TEXT NOT NULL,
  used_at REAL NOT NULL,
  PRIMARY KEY (tenant, agent, user)
) WITHOUT ROWID;

CREATE TABLE counters (
  tenant TEXT NOT NULL,
  run_id TEXT NOT NULL,              -- '' stands for the tenant itself
  name TEXT NOT NULL,
  spent REAL NOT NULL,
  PRIMARY KEY (tenant, run_id, name)
) WITHOUT ROWID;

CREATE TABLE rates (
  tenant TEXT NOT NULL,
  name TEXT NOT NULL,
  arrival REAL NOT NULL,             -- when the next call would arrive, were they spread evenly
  PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

CREATE TABLE refusals (
  tenant TEXT NOT NULL,
  run_id TEXT NOT NULL,
  tool TEXT NOT NULL,                -- '' stands for the run itself
  fingerprint TEXT NOT NULL,
  times INTEGER NOT NULL,
  PRIMARY KEY (tenant, run_id, tool, fingerprint)
) WITHOUT ROWID;

CREATE TABLE ledger (
  tenant TEXT NOT NULL,
  key TEXT NOT NULL,
  request_hash BLOB NOT NULL,
  status TEXT NOT NULL,
  phase TEXT,
  call_id TEXT NOT NULL,
  tool TEXT NOT NULL,
  version TEXT NOT NULL,
  fence INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  unknown_since REAL,
  observation TEXT,                  -- JSON
  PRIMARY KEY (tenant, key)
);

CREATE TABLE held (
  tenant TEXT NOT NULL,
  approval_id TEXT NOT NULL,
  key TEXT NOT NULL,
  status TEXT NOT NULL,
  approval_hash TEXT NOT NULL,
  contract_hash TEXT NOT NULL,
  approvers INTEGER NOT NULL,
  call_id TEXT NOT NULL,
  run_id TEXT NOT NULL,
  tool TEXT NOT NULL,
  version TEXT NOT NULL,
  arguments TEXT NOT NULL,           -- JSON
  agent TEXT NOT NULL,
  user TEXT,
  scopes TEXT NOT NULL,              -- JSON
  reason TEXT NOT NULL,
  rule TEXT,
  before TEXT,                       -- JSON
  version_seen TEXT,                 -- JSON: a text, or a number
  created_at REAL NOT NULL,
  trace_id TEXT NOT NULL,
  PRIMARY KEY (tenant, approval_id)
);

CREATE INDEX held_by_key ON held (tenant, key);

CREATE TABLE events (
  tenant TEXT NOT NULL,
  number INTEGER NOT NULL,           -- when it was recorded, in microseconds; never twice, never back
  type TEXT NOT NULL,
  run_id TEXT NOT NULL,
  call_id TEXT NOT NULL,
  tool TEXT NOT NULL,
  version TEXT NOT NULL,
  agent TEXT NOT NULL,
  user TEXT,
  trace_id TEXT NOT NULL,
  occurred_at REAL NOT NULL,
  decision TEXT NOT NULL,
  policy_version TEXT,
  external_ref TEXT,
  body TEXT,                         -- JSON; NULL: nothing beside the columns
  PRIMARY KEY (tenant, number)
) WITHOUT ROWID;

CREATE INDEX events_by_call ON events (tenant, call_id);
CREATE INDEX events_by_run ON events (tenant, run_id);

CREATE TABLE vault (
  tenant TEXT NOT NULL,
  pointer TEXT NOT NULL,
  raw BLOB NOT NULL,
  PRIMARY KEY (tenant, pointer)
);
