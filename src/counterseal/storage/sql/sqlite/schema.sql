-- The whole of today's schema, for reading. A file is made by the numbered migrations beside it; a
-- test proves that both give the same schema.
--
-- The tables of a store. Every key begins with the tenant, so that a tenant can be moved elsewhere.
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
  user TEXT NOT NULL,                -- '' stands for no user
  run_id TEXT NOT NULL,
  used_at REAL NOT NULL,
  PRIMARY KEY (tenant, agent, user)
) WITHOUT ROWID;

CREATE TABLE counters (
  tenant TEXT NOT NULL,
  run_id TEXT NOT NULL,              -- '' stands for the tenant itself
  name TEXT NOT NULL,
  spent INTEGER NOT NULL,          -- calls, tokens; money in millionths of its unit
  PRIMARY KEY (tenant, run_id, name)
) WITHOUT ROWID;

-- A tenant's counter for a day has a name that ends in a slash and the day's number.
CREATE INDEX counters_by_day
ON counters (CAST(substr(name, length(rtrim(name, '0123456789')) + 1) AS INTEGER))
WHERE run_id = '' AND substr(rtrim(name, '0123456789'), -1) = '/';

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
  run_id TEXT NOT NULL,
  worker TEXT,                       -- the worker that executes it; NULL: none
  looks INTEGER NOT NULL,
  lease_until REAL,                  -- when a worker should look after it; NULL: never
  expires_at REAL,                   -- when its answer is forgotten; NULL: never, or not yet
  resume BLOB,                       -- data with which another worker can go on
  created_at REAL,                   -- when its call was admitted
  completed_at REAL,                 -- when its outcome was written
  PRIMARY KEY (tenant, key)
);

CREATE INDEX ledger_by_call ON ledger (tenant, call_id);
-- Few rows among many, looked for across tenants.
CREATE INDEX ledger_by_lease ON ledger (lease_until)
WHERE status = 'PENDING' AND phase IS NOT 'escalated' AND lease_until IS NOT NULL;
CREATE INDEX ledger_escalated ON ledger (unknown_since, tenant, key)
WHERE status = 'PENDING' AND phase = 'escalated';
CREATE INDEX ledger_by_expiry ON ledger (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE due (
  tenant TEXT NOT NULL,
  kind TEXT NOT NULL,
  key TEXT NOT NULL,
  call_id TEXT NOT NULL,
  run_id TEXT NOT NULL,
  tool TEXT NOT NULL,
  version TEXT NOT NULL,
  body TEXT NOT NULL,                -- JSON
  fence INTEGER NOT NULL,
  tries INTEGER NOT NULL,
  failed TEXT,                       -- why it is not tried again
  since REAL NOT NULL,
  due_at REAL NOT NULL,              -- for claimed work: the end of the lease
  PRIMARY KEY (tenant, kind, key)
);

CREATE INDEX due_by_time ON due (due_at) WHERE failed IS NULL;
CREATE INDEX due_failed ON due (since, tenant, kind, key) WHERE failed IS NOT NULL;

CREATE TABLE changes (
  number INTEGER PRIMARY KEY,        -- from 1 on, without gaps
  what TEXT NOT NULL                 -- JSON
);

CREATE TABLE contracts (
  tool TEXT NOT NULL,
  version TEXT NOT NULL,
  contract_hash TEXT NOT NULL,
  record TEXT NOT NULL,              -- JSON: the whole contract
  held TEXT NOT NULL,                -- JSON: the changes that a person has to accept
  registered_at REAL NOT NULL,
  PRIMARY KEY (tool, version, contract_hash)
) WITHOUT ROWID;

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
  agent TEXT NOT NULL,
  user TEXT,
  reason TEXT NOT NULL,
  rule TEXT,
  risk TEXT NOT NULL,
  demand TEXT NOT NULL,              -- JSON: the terms of the approval
  version_seen TEXT,                 -- JSON: a text, or a number
  created_at REAL NOT NULL,
  expires_at REAL NOT NULL,
  trace_id TEXT NOT NULL,
  sealed BLOB NOT NULL,              -- the call itself; empty: forgotten
  votes TEXT NOT NULL,               -- JSON: the votes, in their order
  token TEXT,                        -- the signed proof of its approval
  PRIMARY KEY (tenant, approval_id)
);

-- In the order in which they came: under a key, and of one caller.
CREATE INDEX held_by_key ON held (tenant, key);
CREATE INDEX held_by_caller ON held (tenant, key, agent, coalesce(user, ''));
-- By the time of their end: requests of a tenant, and of all tenants.
CREATE INDEX held_by_status ON held (tenant, status, expires_at);
CREATE INDEX held_of_all ON held (status, expires_at);
-- Decided requests whose call or token is still kept.
CREATE INDEX held_kept ON held (expires_at)
WHERE status <> 'waiting' AND (sealed <> x'' OR token IS NOT NULL);

CREATE TABLE events (
  tenant TEXT NOT NULL,
  number INTEGER NOT NULL,           -- when it was recorded, in microseconds; in a segment never twice
  segment TEXT NOT NULL,             -- the writer that recorded it
  seq INTEGER NOT NULL,
  salt BLOB,                         -- NULL: the event was erased, and so is all below but the link
  digest BLOB NOT NULL,
  hash BLOB NOT NULL,
  type TEXT,
  run_id TEXT,
  call_id TEXT,
  tool TEXT,
  version TEXT,
  agent TEXT,
  user TEXT,
  trace_id TEXT,
  occurred_at,                       -- as it came: another spelling of a number is another digest
  decision TEXT,
  policy_version TEXT,
  external_ref TEXT,
  body TEXT,                         -- JSON; NULL: nothing beside the columns
  code TEXT,                         -- the code that the call was answered with; NULL: ends no call
  tally TEXT,                        -- the tally that it counts for; NULL: not counted
  cost REAL,
  caller_call_id TEXT,               -- the id that the caller gave its call; not unique
  workflow_id TEXT,
  conversation_id TEXT,
  session_id TEXT,
  PRIMARY KEY (tenant, number, segment)
) WITHOUT ROWID;

CREATE INDEX events_by_call ON events (tenant, call_id) WHERE call_id IS NOT NULL;
CREATE INDEX events_by_caller_call ON events (tenant, caller_call_id)
WHERE caller_call_id IS NOT NULL;
CREATE INDEX events_by_run ON events (tenant, run_id) WHERE run_id IS NOT NULL;
-- Calls, by the events that end them. Those that succeed are most of all, and found without one.
CREATE INDEX events_by_tool ON events (tenant, tool, number) WHERE code IS NOT NULL;
CREATE INDEX events_by_agent ON events (tenant, agent, number) WHERE code IS NOT NULL;
CREATE INDEX events_by_user ON events (tenant, user, number)
WHERE code IS NOT NULL AND user IS NOT NULL;
CREATE INDEX events_by_code ON events (tenant, code, number)
WHERE code IS NOT NULL AND code <> 'SUCCESS';
CREATE INDEX events_by_version ON events (tenant, version, number) WHERE code IS NOT NULL;
CREATE INDEX events_by_external_ref ON events (tenant, external_ref, number)
WHERE code IS NOT NULL AND external_ref IS NOT NULL;
CREATE INDEX events_by_workflow ON events (tenant, workflow_id, number)
WHERE code IS NOT NULL AND workflow_id IS NOT NULL;
CREATE INDEX events_by_conversation ON events (tenant, conversation_id, number)
WHERE code IS NOT NULL AND conversation_id IS NOT NULL;
CREATE INDEX events_by_session ON events (tenant, session_id, number)
WHERE code IS NOT NULL AND session_id IS NOT NULL;
-- Numbers of a time, without a look at the events themselves.
CREATE INDEX events_by_tally ON events (tenant, tally, number, cost) WHERE tally IS NOT NULL;

CREATE TABLE erasures (
  tenant TEXT NOT NULL PRIMARY KEY,
  until INTEGER NOT NULL             -- no event before this number is left to be erased
) WITHOUT ROWID;

CREATE TABLE checkpoints (
  tenant TEXT NOT NULL,
  number INTEGER NOT NULL,
  sealed_at REAL NOT NULL,
  heads TEXT NOT NULL,               -- JSON: segment to number, place and hash
  previous BLOB NOT NULL,
  hash BLOB NOT NULL,
  key_id TEXT NOT NULL,
  signature BLOB NOT NULL,
  PRIMARY KEY (tenant, number)
) WITHOUT ROWID;

CREATE TABLE vault (
  tenant TEXT NOT NULL,
  pointer TEXT NOT NULL,
  raw BLOB NOT NULL,
  kept_at REAL NOT NULL,
  forget_at REAL,                    -- when it is deleted at the latest; NULL: no limit of its own
  PRIMARY KEY (tenant, pointer)
);

CREATE INDEX vault_by_age ON vault (kept_at);
CREATE INDEX vault_by_end ON vault (forget_at) WHERE forget_at IS NOT NULL;

-- Sessions of people. A session belongs to a person, not to a tenant.
CREATE TABLE sessions (
  session TEXT NOT NULL PRIMARY KEY, -- hex digest of the secret in the session's cookie
  user TEXT NOT NULL,
  created_at REAL NOT NULL,
  seen_at REAL NOT NULL,
  expires_at REAL NOT NULL,
  facts TEXT NOT NULL                -- JSON
) WITHOUT ROWID;

CREATE INDEX sessions_by_user ON sessions (user);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);
