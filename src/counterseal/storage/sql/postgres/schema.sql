-- The whole of today's schema, for reading. A database is made by the numbered migrations beside it; a
-- test proves that both give the same schema.
--
-- The tables of a store. Every key begins with the tenant, so that a tenant can be moved elsewhere;
-- indexes that workers look for work in begin with its time, because they work for all tenants.
--
-- Moments are DOUBLE PRECISION seconds since the epoch, as they came: a rounded one would not compare
-- equal to what the runtime holds. JSON is TEXT, so that it comes back as it was written. What is looked
-- for is compared byte by byte ("C"): fast, and the same after an upgrade of the system's locales.

CREATE TABLE migrations (
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  checksum TEXT NOT NULL,
  applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE TABLE runs (
  tenant TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  started_at DOUBLE PRECISION NOT NULL,
  objective TEXT,
  allowed_tools TEXT,                -- JSON; NULL: every tool
  budgets TEXT NOT NULL,             -- JSON
  deadline DOUBLE PRECISION,
  config TEXT NOT NULL,              -- JSON
  turn BIGINT NOT NULL,
  changes BIGINT NOT NULL,           -- how often the state was changed, whatever the key
  pins TEXT NOT NULL,                -- JSON: tool to version
  seen TEXT NOT NULL,                -- JSON: resource to version
  refused TEXT NOT NULL,             -- JSON: tools whose refusals are being counted
  PRIMARY KEY (tenant, run_id)
);

CREATE TABLE run_state (
  tenant TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  key TEXT COLLATE "C" NOT NULL,
  value TEXT,                        -- JSON; NULL: forgotten, but its version goes on
  version BIGINT NOT NULL,
  untrusted BOOLEAN NOT NULL,
  PRIMARY KEY (tenant, run_id, key)
);

CREATE TABLE implicit_runs (
  tenant TEXT COLLATE "C" NOT NULL,
  agent TEXT COLLATE "C" NOT NULL,
  user_id TEXT COLLATE "C" NOT NULL, -- '' stands for no user
  run_id TEXT NOT NULL,
  used_at DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (tenant, agent, user_id)
);

CREATE TABLE counters (
  tenant TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,  -- '' stands for the tenant itself
  name TEXT COLLATE "C" NOT NULL,
  spent BIGINT NOT NULL,           -- calls, tokens; money in millionths of its unit
  day BIGINT,                        -- the day that a tenant's counter is for; NULL: for ever
  PRIMARY KEY (tenant, run_id, name)
) WITH (fillfactor = 50);            -- changed with every call: room beside each row keeps that cheap

CREATE INDEX counters_of_days ON counters (day) WHERE day IS NOT NULL;

CREATE TABLE rates (
  tenant TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  arrival DOUBLE PRECISION NOT NULL, -- when the next call would arrive, were they spread evenly
  PRIMARY KEY (tenant, name)
) WITH (fillfactor = 50);

CREATE TABLE refusals (
  tenant TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  tool TEXT COLLATE "C" NOT NULL,    -- '' stands for the run itself
  fingerprint TEXT COLLATE "C" NOT NULL,
  times BIGINT NOT NULL,
  PRIMARY KEY (tenant, run_id, tool, fingerprint)
);

CREATE TABLE ledger (
  tenant TEXT COLLATE "C" NOT NULL,
  key TEXT COLLATE "C" NOT NULL,
  request_hash BYTEA NOT NULL,
  status TEXT NOT NULL,
  phase TEXT,
  call_id TEXT NOT NULL,
  run_id TEXT NOT NULL,
  tool TEXT NOT NULL,
  version TEXT NOT NULL,
  fence BIGINT NOT NULL,
  attempts BIGINT NOT NULL,
  unknown_since DOUBLE PRECISION,
  observation TEXT,                  -- JSON
  worker TEXT,                       -- the worker that executes it
  looks BIGINT NOT NULL,
  lease_until DOUBLE PRECISION,      -- when a worker should look after it, by the server's clock
  expires_at DOUBLE PRECISION,       -- when its answer is no longer kept, by the same clock
  awaited BOOLEAN NOT NULL,          -- whether a caller, anywhere, waits for its release
  resume BYTEA,                      -- data with which another worker can go on
  created_at DOUBLE PRECISION,       -- when its call was admitted
  completed_at DOUBLE PRECISION,     -- when its outcome was written
  PRIMARY KEY (tenant, key)
);

CREATE INDEX ledger_by_call ON ledger USING hash (call_id);   -- which no plan takes for keys
CREATE INDEX ledger_adrift ON ledger (lease_until, tenant, key)
  WHERE status = 'PENDING' AND phase IS DISTINCT FROM 'escalated' AND lease_until IS NOT NULL;
CREATE INDEX ledger_escalated ON ledger (tenant, unknown_since)
  WHERE status = 'PENDING' AND phase = 'escalated';
CREATE INDEX ledger_over ON ledger (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE due (
  tenant TEXT COLLATE "C" NOT NULL,
  kind TEXT COLLATE "C" NOT NULL,
  key TEXT COLLATE "C" NOT NULL,
  call_id TEXT NOT NULL,
  run_id TEXT NOT NULL,
  tool TEXT NOT NULL,
  version TEXT NOT NULL,
  body TEXT NOT NULL,                -- JSON
  fence BIGINT NOT NULL,
  tries BIGINT NOT NULL,
  failed TEXT,
  since DOUBLE PRECISION NOT NULL,
  due_at DOUBLE PRECISION,           -- NULL: failed, and on the operator's list
  PRIMARY KEY (tenant, kind, key)
);

CREATE INDEX due_next ON due (due_at, tenant, kind, key) WHERE due_at IS NOT NULL;
CREATE INDEX due_failed ON due (tenant, since) WHERE failed IS NOT NULL;

CREATE TABLE contracts (
  tool TEXT COLLATE "C" NOT NULL,
  version TEXT COLLATE "C" NOT NULL,
  contract_hash TEXT COLLATE "C" NOT NULL,
  record TEXT NOT NULL,              -- JSON: the whole contract
  held TEXT NOT NULL,                -- JSON: the changes that a person has to accept
  registered_at DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (tool, version, contract_hash)
);

CREATE TABLE held (
  tenant TEXT COLLATE "C" NOT NULL,
  approval_id TEXT COLLATE "C" NOT NULL,
  key TEXT COLLATE "C" NOT NULL,
  status TEXT NOT NULL,
  approval_hash TEXT NOT NULL,
  contract_hash TEXT NOT NULL,
  approvers BIGINT NOT NULL,
  call_id TEXT NOT NULL,
  run_id TEXT NOT NULL,
  tool TEXT NOT NULL,
  version TEXT NOT NULL,
  agent TEXT NOT NULL,
  user_id TEXT,
  reason TEXT NOT NULL,
  rule TEXT,
  risk TEXT NOT NULL,
  demand TEXT NOT NULL,              -- JSON: the terms of the approval
  version_seen TEXT,                 -- JSON: a text, or a number
  created_at DOUBLE PRECISION NOT NULL,
  expires_at DOUBLE PRECISION NOT NULL,
  trace_id TEXT NOT NULL,
  sealed BYTEA NOT NULL,             -- the call itself; empty: forgotten
  votes TEXT NOT NULL,               -- JSON: the votes, in their order
  token TEXT,                        -- the signed proof of its approval
  latest BOOLEAN NOT NULL,           -- whether it is its caller's last one under its key
  awaited BOOLEAN NOT NULL,          -- whether a caller, anywhere, waits for its decision
  number BIGINT GENERATED ALWAYS AS IDENTITY, -- in the order in which they came
  PRIMARY KEY (tenant, approval_id)
);

CREATE UNIQUE INDEX held_by_key ON held (tenant, key, agent, coalesce(user_id, '')) WHERE latest;
-- By the time of their end: requests of a tenant, and of all tenants.
CREATE INDEX held_by_status ON held (tenant, status, expires_at);
CREATE INDEX held_of_all ON held (status, expires_at);
-- Decided requests whose call or token is still kept.
CREATE INDEX held_kept ON held (expires_at)
WHERE status <> 'waiting' AND (sealed <> '' OR token IS NOT NULL);

CREATE TABLE registry_changes (
  number BIGINT PRIMARY KEY,
  what TEXT NOT NULL                 -- JSON
);

CREATE TABLE events (
  tenant TEXT COLLATE "C" NOT NULL,
  number BIGINT NOT NULL,            -- when it was recorded, in microseconds
  segment TEXT COLLATE "C" NOT NULL, -- whose record it is: one connection's of one worker
  seq BIGINT NOT NULL,               -- its place in the segment
  salt BYTEA,                        -- NULL, as all that follows the hash: erased
  digest BYTEA NOT NULL,
  hash BYTEA NOT NULL,
  type TEXT,
  run_id TEXT COLLATE "C",
  call_id TEXT COLLATE "C",
  tool TEXT COLLATE "C",
  version TEXT,
  agent TEXT COLLATE "C",
  user_id TEXT COLLATE "C",
  trace_id TEXT,
  occurred_at DOUBLE PRECISION,
  decision TEXT,
  policy_version TEXT,
  external_ref TEXT,
  body TEXT,                         -- JSON; NULL: nothing beside the columns
  code TEXT COLLATE "C",             -- the code that the call was answered with; NULL: ends no call
  tally TEXT COLLATE "C",            -- the tally that it counts for; NULL: not counted
  cost DOUBLE PRECISION,
  caller_call_id TEXT COLLATE "C",   -- the id that the caller gave its call; not unique
  workflow_id TEXT COLLATE "C",
  conversation_id TEXT COLLATE "C",
  session_id TEXT COLLATE "C",
  PRIMARY KEY (tenant, number, segment)
);

CREATE INDEX events_by_call ON events (tenant, call_id, number) WHERE call_id IS NOT NULL;
CREATE INDEX events_by_caller_call ON events (tenant, caller_call_id, number)
WHERE caller_call_id IS NOT NULL;
CREATE INDEX events_by_run ON events (tenant, run_id, number) WHERE run_id IS NOT NULL;
-- Calls, by the events that end them. Those that succeed are most of all, and found without one.
CREATE INDEX events_by_tool ON events (tenant, tool, number, segment) WHERE code IS NOT NULL;
CREATE INDEX events_by_agent ON events (tenant, agent, number, segment) WHERE code IS NOT NULL;
CREATE INDEX events_by_user ON events (tenant, user_id, number, segment)
WHERE code IS NOT NULL AND user_id IS NOT NULL;
CREATE INDEX events_by_code ON events (tenant, code, number, segment)
WHERE code IS NOT NULL AND code <> 'SUCCESS';
CREATE INDEX events_by_version ON events (tenant, version, number, segment) WHERE code IS NOT NULL;
CREATE INDEX events_by_external_ref ON events (tenant, external_ref, number, segment)
WHERE code IS NOT NULL AND external_ref IS NOT NULL;
CREATE INDEX events_by_workflow ON events (tenant, workflow_id, number, segment)
WHERE code IS NOT NULL AND workflow_id IS NOT NULL;
CREATE INDEX events_by_conversation ON events (tenant, conversation_id, number, segment)
WHERE code IS NOT NULL AND conversation_id IS NOT NULL;
CREATE INDEX events_by_session ON events (tenant, session_id, number, segment)
WHERE code IS NOT NULL AND session_id IS NOT NULL;
-- Numbers of a time, without a look at the events themselves.
CREATE INDEX events_by_tally ON events (tenant, tally, number) INCLUDE (cost)
WHERE tally IS NOT NULL;

CREATE TABLE erasures (
  tenant TEXT COLLATE "C" PRIMARY KEY,
  number BIGINT NOT NULL,            -- up to which event all are erased that ever will be
  segment TEXT NOT NULL
);

CREATE TABLE checkpoints (
  tenant TEXT COLLATE "C" NOT NULL,
  number BIGINT NOT NULL,
  sealed_at DOUBLE PRECISION NOT NULL,
  heads TEXT NOT NULL,               -- JSON: segment to number, place, and hash in hexadecimal
  previous BYTEA NOT NULL,
  hash BYTEA NOT NULL,
  key_id TEXT NOT NULL,
  signature BYTEA NOT NULL,
  PRIMARY KEY (tenant, number)
);

CREATE TABLE vault (
  tenant TEXT COLLATE "C" NOT NULL,
  pointer TEXT COLLATE "C" NOT NULL,
  raw BYTEA NOT NULL,
  kept_at DOUBLE PRECISION NOT NULL, -- by the server's clock
  forget_at DOUBLE PRECISION,        -- when it is deleted at the latest; NULL: no limit of its own
  PRIMARY KEY (tenant, pointer)
);

CREATE INDEX vault_by_age ON vault (kept_at);
CREATE INDEX vault_by_end ON vault (forget_at) WHERE forget_at IS NOT NULL;

-- Sessions of people. A session belongs to a person, not to a tenant.
CREATE TABLE sessions (
  session TEXT COLLATE "C" PRIMARY KEY, -- hex digest of the secret in the session's cookie
  user_id TEXT COLLATE "C" NOT NULL,
  created_at DOUBLE PRECISION NOT NULL,
  seen_at DOUBLE PRECISION NOT NULL,
  expires_at DOUBLE PRECISION NOT NULL,
  facts TEXT NOT NULL                -- JSON
);

CREATE INDEX sessions_by_user ON sessions (user_id);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);
