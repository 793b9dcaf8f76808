-- Every statement that the SQLite store runs, by name. `?` are in the order of the columns.

-- name: find_run
-- The last column says whether there is anything in its state.
SELECT run_id, started_at, objective, allowed_tools, budgets, deadline, config, turn, changes, pins,
  seen, refused,
  EXISTS (SELECT 1 FROM run_state AS s WHERE s.tenant = r.tenant AND s.run_id = r.run_id)
FROM runs AS r WHERE tenant = ? AND run_id = ?;

-- name: find_state
SELECT key, value, version, untrusted FROM run_state WHERE tenant = ? AND run_id = ?;

-- name: find_implicit
-- The run of a caller that names none, and when it was last used.
SELECT i.used_at, r.run_id, started_at, objective, allowed_tools, budgets, deadline, config, turn,
  changes, pins, seen, refused,
  EXISTS (SELECT 1 FROM run_state AS s WHERE s.tenant = r.tenant AND s.run_id = r.run_id)
FROM implicit_runs AS i JOIN runs AS r ON r.tenant = i.tenant AND r.run_id = i.run_id
WHERE i.tenant = ? AND i.agent = ? AND i.user = ?;

-- name: use_implicit
INSERT INTO implicit_runs (tenant, agent, user, run_id, used_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, agent, user) DO UPDATE SET run_id = excluded.run_id, used_at = excluded.used_at;

-- name: insert_run
INSERT INTO runs (tenant, run_id, started_at, objective, allowed_tools, budgets, deadline, config,
  turn, changes, pins, seen, refused)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: load_run
-- The part of a run that transactions change.
SELECT turn, changes, pins, seen, refused FROM runs WHERE tenant = ? AND run_id = ?;

-- name: update_run
UPDATE runs SET turn = ?, changes = ?, pins = ?, seen = ?, refused = ?
WHERE tenant = ? AND run_id = ?;

-- name: load_implicit
SELECT run_id, used_at FROM implicit_runs WHERE tenant = ? AND agent = ? AND user = ?;

-- name: find_key
SELECT key, value, version, untrusted FROM run_state WHERE tenant = ? AND run_id = ? AND key = ?;

-- name: write_state
INSERT INTO run_state (tenant, run_id, key, value, version, untrusted) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, run_id, key) DO UPDATE
SET value = excluded.value, version = excluded.version, untrusted = excluded.untrusted;

-- name: recall_counters
-- All that was spent: by the run, by the tenant, and of its rates.
SELECT 1, name, spent FROM counters WHERE tenant = ? AND run_id = ?
UNION ALL SELECT 2, name, spent FROM counters WHERE tenant = ? AND run_id = ''
UNION ALL SELECT 3, name, arrival FROM rates WHERE tenant = ?;

-- name: spent
SELECT spent FROM counters WHERE tenant = ? AND run_id = ? AND name = ?;

-- name: spend
INSERT INTO counters (tenant, run_id, name, spent) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, run_id, name) DO UPDATE SET spent = excluded.spent;

-- name: arrival
SELECT arrival FROM rates WHERE tenant = ? AND name = ?;

-- name: arrive
INSERT INTO rates (tenant, name, arrival) VALUES (?, ?, ?)
ON CONFLICT (tenant, name) DO UPDATE SET arrival = excluded.arrival;

-- name: epoch
-- The number of the last change to the registry.
SELECT coalesce(max(number), 0) FROM changes;

-- name: find_entry
SELECT tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence,
  attempts, unknown_since, observation, worker, looks, created_at, completed_at,
  lease_until, expires_at
FROM ledger WHERE tenant = ? AND key = ?;

-- name: known_key
-- Whether anything was ever done, or asked, under a key.
SELECT EXISTS (SELECT 1 FROM ledger WHERE tenant = ? AND key = ?)
  OR EXISTS (SELECT 1 FROM held WHERE tenant = ? AND key = ?);

-- name: insert_entry
INSERT INTO ledger (tenant, key, request_hash, call_id, tool, version, run_id, resume, created_at,
  status, phase, fence, attempts, unknown_since, observation, worker, looks, completed_at,
  lease_until, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: replace_entry
-- A used key is reserved again.
INSERT INTO ledger (tenant, key, request_hash, call_id, tool, version, run_id, resume, created_at,
  status, phase, fence, attempts, unknown_since, observation, worker, looks, completed_at,
  lease_until, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, key) DO UPDATE
SET request_hash = excluded.request_hash, call_id = excluded.call_id, tool = excluded.tool,
  version = excluded.version, run_id = excluded.run_id, resume = excluded.resume,
  created_at = excluded.created_at, completed_at = excluded.completed_at,
  status = excluded.status, phase = excluded.phase, fence = excluded.fence,
  attempts = excluded.attempts, unknown_since = excluded.unknown_since,
  observation = excluded.observation, worker = excluded.worker, looks = excluded.looks,
  lease_until = excluded.lease_until, expires_at = excluded.expires_at;

-- name: update_entry
-- The columns of the reservation stay as they are.
UPDATE ledger
SET status = ?, phase = ?, fence = ?, attempts = ?, unknown_since = ?, observation = ?, worker = ?,
  looks = ?, completed_at = ?, lease_until = ?, expires_at = ?
WHERE tenant = ? AND key = ?;

-- name: orphans
-- Of some tools, each between spaces, or of all. A lease that ends too late was given before the
-- clock was set back.
SELECT tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence,
  attempts, unknown_since, observation, worker, looks, created_at, completed_at,
  lease_until, expires_at, resume
FROM ledger WHERE status = 'PENDING' AND phase IS NOT 'escalated' AND lease_until IS NOT NULL
  AND (lease_until <= ? OR lease_until > ?) AND (? IS NULL OR instr(?, ' ' || tool || ' '))
ORDER BY lease_until, tenant, key LIMIT ?;

-- name: claim_orphan
UPDATE ledger
SET fence = ?, worker = ?, phase = 'unknown', unknown_since = ?, looks = ?, lease_until = ?
WHERE tenant = ? AND key = ?;

-- name: escalated
-- Of one tenant, or of all.
SELECT tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence,
  attempts, unknown_since, observation, worker, looks, created_at, completed_at,
  lease_until, expires_at
FROM ledger WHERE status = 'PENDING' AND phase = 'escalated' AND (? IS NULL OR tenant = ?)
ORDER BY unknown_since, tenant, key LIMIT ?;

-- name: look_up
SELECT tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence,
  attempts, unknown_since, observation, worker, looks, created_at, completed_at,
  lease_until, expires_at, resume
FROM ledger WHERE tenant = ? AND key = ?;

-- name: look_up_call
SELECT tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence,
  attempts, unknown_since, observation, worker, looks, created_at, completed_at,
  lease_until, expires_at, resume
FROM ledger WHERE tenant = ? AND call_id = ? ORDER BY key LIMIT ?;

-- name: expire_keys
-- A call that is still to be verified or reversed keeps its entry.
UPDATE ledger
SET status = CASE status WHEN 'FAILED_RETRYABLE' THEN status ELSE 'EXPIRED' END,
  observation = NULL, resume = NULL, expires_at = NULL
WHERE rowid IN (
  SELECT rowid FROM ledger AS l WHERE expires_at <= ? AND NOT EXISTS (
    SELECT 1 FROM due AS d
    WHERE d.tenant = l.tenant AND d.kind IN ('verify', 'compensate') AND d.key = l.key
  )
  ORDER BY expires_at, tenant, key LIMIT ?
);

-- name: insert_due
INSERT INTO due (tenant, kind, key, call_id, run_id, tool, version, body, fence, tries, failed,
  since, due_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_due
-- Failed work has no time; the column keeps its last one.
UPDATE due
SET call_id = ?, run_id = ?, tool = ?, version = ?, body = ?, fence = ?, tries = ?, failed = ?,
  since = ?, due_at = coalesce(?, due_at)
WHERE tenant = ? AND kind = ? AND key = ?;

-- name: delete_due
DELETE FROM due WHERE tenant = ? AND kind = ? AND key = ?;

-- name: find_due
SELECT tenant, kind, key, call_id, run_id, tool, version, body, fence, tries, failed, since, due_at
FROM due WHERE tenant = ? AND kind = ? AND key = ?;

-- name: due
-- Of some tools, each between spaces, or of all.
SELECT tenant, kind, key, call_id, run_id, tool, version, body, fence, tries, failed, since
FROM due WHERE failed IS NULL AND due_at <= ? AND (? IS NULL OR instr(?, ' ' || tool || ' '))
ORDER BY due_at, tenant, kind, key LIMIT ?;

-- name: claim_due
UPDATE due SET fence = ?, tries = ?, due_at = ? WHERE tenant = ? AND kind = ? AND key = ?;

-- name: failed_due
-- Of one tenant, or of all.
SELECT tenant, kind, key, call_id, run_id, tool, version, body, fence, tries, failed, since
FROM due WHERE failed IS NOT NULL AND (? IS NULL OR tenant = ?)
ORDER BY since, tenant, kind, key LIMIT ?;

-- name: changes
SELECT number, what FROM changes WHERE number > ? ORDER BY number;

-- name: contracts
-- Registered contracts of the tools in a JSON list.
SELECT tool, version, contract_hash, record, held, registered_at FROM contracts
WHERE tool IN (SELECT each.value FROM json_each(?) AS each);

-- name: find_contract
SELECT tool, version, contract_hash, record, held, registered_at FROM contracts
WHERE tool = ? AND version = ? AND contract_hash = ?;

-- name: insert_contract
INSERT INTO contracts (tool, version, contract_hash, record, held, registered_at)
VALUES (?, ?, ?, ?, ?, ?);

-- name: insert_change
INSERT INTO changes (number, what) VALUES (?, ?);

-- name: find_held
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token
FROM held WHERE tenant = ? AND approval_id = ?;

-- name: last_held
-- The last proposal that was held under a key.
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token
FROM held WHERE tenant = ? AND key = ? ORDER BY rowid DESC LIMIT 1;

-- name: last_held_of
-- The last request of one caller under a key.
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token
FROM held WHERE tenant = ? AND key = ? AND agent = ? AND coalesce(user, '') = ?
ORDER BY rowid DESC LIMIT 1;

-- name: list_held
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token
FROM held WHERE tenant = ? AND status = ?
  AND (expires_at, approval_id) > (?, ?) AND (expires_at, approval_id) < (?, ?)
ORDER BY expires_at, approval_id LIMIT ?;

-- name: newest_held
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token
FROM held WHERE tenant = ? AND status = ?
  AND (expires_at, approval_id) > (?, ?) AND (expires_at, approval_id) < (?, ?)
ORDER BY expires_at DESC, approval_id DESC LIMIT ?;

-- name: list_all_held
-- Requests of all tenants.
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token
FROM held WHERE status = ?
  AND (expires_at, approval_id) > (?, ?) AND (expires_at, approval_id) < (?, ?)
ORDER BY expires_at, approval_id LIMIT ?;

-- name: newest_of_all_held
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token
FROM held WHERE status = ?
  AND (expires_at, approval_id) > (?, ?) AND (expires_at, approval_id) < (?, ?)
ORDER BY expires_at DESC, approval_id DESC LIMIT ?;

-- name: hold
INSERT INTO held (tenant, approval_id, key, status, approval_hash, contract_hash, approvers,
  call_id, run_id, tool, version, agent, user, reason, rule, risk, demand, version_seen,
  created_at, expires_at, trace_id, sealed, votes, token)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_held
UPDATE held SET status = ?, votes = ?, token = ? WHERE tenant = ? AND approval_id = ?;

-- name: write_refusal
INSERT INTO refusals (tenant, run_id, tool, fingerprint, times) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, run_id, tool, fingerprint) DO UPDATE SET times = excluded.times;

-- name: load_refusals
SELECT fingerprint, times FROM refusals WHERE tenant = ? AND run_id = ? AND tool = ?;

-- name: delete_refusal
DELETE FROM refusals WHERE tenant = ? AND run_id = ? AND tool = ? AND fingerprint = ?;

-- name: record
INSERT INTO events (number, segment, seq, salt, digest, hash,
  type, tenant, run_id, call_id, tool, version, agent, user, trace_id, occurred_at, decision,
  policy_version, external_ref, body, code, tally, cost, caller_call_id,
  workflow_id, conversation_id, session_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- The next three are completed by `sqlite/queries.py`: {index} names the index to use, {narrow} is a
-- condition for each field that is searched for, {order} is DESC for the newest first.

-- name: events
-- Events between two places, neither of them included. Erased ones are left out.
SELECT number, segment, type, tenant, run_id, call_id, tool, version, agent, user, trace_id,
  occurred_at, decision, policy_version, external_ref, body, caller_call_id, workflow_id,
  conversation_id, session_id
FROM events {index}
WHERE tenant = ? AND (number, segment) > (?, ?) AND (number, segment) < (?, ?)
  AND salt IS NOT NULL AND type IS NOT NULL {narrow}
ORDER BY number {order}, segment {order} LIMIT ?;

-- name: calls
-- Calls, newest first: the last event that ended each.
SELECT number, segment, type, tenant, run_id, call_id, tool, version, agent, user, trace_id,
  occurred_at, decision, policy_version, external_ref, body, caller_call_id, workflow_id,
  conversation_id, session_id
FROM events AS e {index}
WHERE tenant = ? AND (number, segment) > (?, ?) AND (number, segment) < (?, ?)
  AND code IS NOT NULL {narrow}
  AND NOT EXISTS (
    SELECT 1 FROM events AS later INDEXED BY events_by_call
    WHERE later.tenant = e.tenant AND later.call_id = e.call_id AND later.code IS NOT NULL
      AND (later.number, later.segment) > (e.number, e.segment)
  )
ORDER BY number DESC, segment DESC LIMIT ?;

-- name: count_calls
-- How many events `calls` would look at, up to some number.
SELECT count(*) FROM (
  SELECT 1 FROM events {index}
  WHERE tenant = ? AND (number, segment) > (?, ?) AND (number, segment) < (?, ?)
    AND code IS NOT NULL {narrow}
  LIMIT ?
);

-- name: tallies
-- The tallies of a tenant: one step for each, however many events it has.
WITH RECURSIVE each (tally) AS (
  SELECT min(tally) FROM events INDEXED BY events_by_tally WHERE tenant = ? AND tally IS NOT NULL
  UNION ALL
  SELECT (
    SELECT min(e.tally) FROM events AS e INDEXED BY events_by_tally
    WHERE e.tenant = ? AND e.tally > each.tally
  ) FROM each WHERE each.tally IS NOT NULL
)
SELECT tally FROM each WHERE tally IS NOT NULL;

-- name: any_of_tally
SELECT 1 FROM events INDEXED BY events_by_tally
WHERE tenant = ? AND tally = ? AND number >= ? AND number < ? LIMIT 1;

-- name: count_tally
SELECT count(*), total(cost) FROM events INDEXED BY events_by_tally
WHERE tenant = ? AND tally = ? AND number >= ? AND number < ?;

-- name: tenants
-- Tenants with events or checkpoints: one step for each, however many events it has.
WITH RECURSIVE each (tenant) AS (
  SELECT min(tenant) FROM (
    SELECT min(tenant) AS tenant FROM events UNION ALL SELECT min(tenant) FROM checkpoints
  )
  UNION ALL
  SELECT (
    SELECT min(tenant) FROM (
      SELECT min(tenant) AS tenant FROM events WHERE events.tenant > each.tenant
      UNION ALL SELECT min(tenant) FROM checkpoints WHERE checkpoints.tenant > each.tenant
    )
  ) FROM each
  WHERE each.tenant IS NOT NULL
)
SELECT tenant FROM each WHERE tenant IS NOT NULL;

-- name: recorded
SELECT number, segment, seq, salt, digest, hash,
  type, tenant, run_id, call_id, tool, version, agent, user, trace_id, occurred_at, decision,
  policy_version, external_ref, body, code, tally, cost, caller_call_id,
  workflow_id, conversation_id, session_id
FROM events WHERE tenant = ? AND (number, segment) > (?, ?) ORDER BY number, segment LIMIT ?;

-- name: heads
-- The last link of each segment: beside a maximum, SQLite shows the row that it is in.
SELECT segment, max(number), seq, hash FROM events WHERE tenant = ? AND number >= ?
GROUP BY segment;

-- name: erased_until
SELECT until FROM erasures WHERE tenant = ?;

-- name: erasable
-- Events that record an erasure are never erased.
SELECT tenant, number, segment FROM events
WHERE tenant = ? AND number >= ? AND number < ? AND salt IS NOT NULL AND type <> 'audit.erased'
ORDER BY number, segment LIMIT ?;

-- name: erase
UPDATE events
SET salt = NULL, type = NULL, run_id = NULL, call_id = NULL, tool = NULL, version = NULL,
  agent = NULL, user = NULL, trace_id = NULL, occurred_at = NULL, decision = NULL,
  policy_version = NULL, external_ref = NULL, body = NULL, code = NULL, tally = NULL, cost = NULL,
  caller_call_id = NULL, workflow_id = NULL, conversation_id = NULL, session_id = NULL
WHERE tenant = ? AND number = ? AND segment = ?;

-- name: erased
INSERT INTO erasures (tenant, until) VALUES (?, ?)
ON CONFLICT (tenant) DO UPDATE SET until = excluded.until;

-- name: checkpoints
SELECT tenant, number, sealed_at, heads, previous, hash, key_id, signature
FROM checkpoints WHERE tenant = ? ORDER BY number;

-- name: seal
INSERT INTO checkpoints (tenant, number, sealed_at, heads, previous, hash, key_id, signature)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, number) DO NOTHING;

-- name: keep
INSERT INTO vault (tenant, pointer, raw, kept_at, forget_at) VALUES (?, ?, ?, ?, ?);

-- name: forget
DELETE FROM vault WHERE tenant = ? AND pointer = ?;

-- name: fetch
SELECT raw FROM vault WHERE tenant = ? AND pointer = ?;

-- name: fetch_all
SELECT pointer, raw FROM vault
WHERE tenant = ? AND pointer IN (SELECT each.value FROM json_each(?) AS each);

-- name: expire_kept
-- Deletes values whose own time is over.
DELETE FROM vault WHERE rowid IN (
  SELECT rowid FROM vault WHERE forget_at <= ? ORDER BY forget_at LIMIT ?
);

-- name: empty_vault
DELETE FROM vault WHERE rowid IN (
  SELECT rowid FROM vault WHERE kept_at <= ? ORDER BY kept_at LIMIT ?
);

-- name: forget_held
-- Drops calls and tokens of decided requests that ended by a time.
UPDATE held SET sealed = x'', token = NULL WHERE rowid IN (
  SELECT rowid FROM held
  WHERE status <> 'waiting' AND (sealed <> x'' OR token IS NOT NULL) AND expires_at <= ?
  ORDER BY expires_at, tenant, approval_id LIMIT ?
);

-- name: forget_days
-- Counters of tenants for days before a day.
DELETE FROM counters WHERE (tenant, run_id, name) IN (
  SELECT tenant, run_id, name FROM counters
  WHERE run_id = '' AND substr(rtrim(name, '0123456789'), -1) = '/' AND substr(name, -1) <> '/'
    AND CAST(substr(name, length(rtrim(name, '0123456789')) + 1) AS INTEGER) BETWEEN 0 AND ?
  ORDER BY CAST(substr(name, length(rtrim(name, '0123456789')) + 1) AS INTEGER), tenant, name
  LIMIT ?
);

-- name: save_session
INSERT INTO sessions (session, user, created_at, seen_at, expires_at, facts)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (session) DO UPDATE
SET user = excluded.user, created_at = excluded.created_at, seen_at = excluded.seen_at,
  expires_at = excluded.expires_at, facts = excluded.facts;

-- name: find_session
SELECT session, user, created_at, seen_at, expires_at, facts FROM sessions WHERE session = ?;

-- name: end_session
DELETE FROM sessions WHERE session = ?;

-- name: end_sessions
DELETE FROM sessions WHERE user = ?;

-- name: expire_sessions
DELETE FROM sessions WHERE session IN (
  SELECT session FROM sessions WHERE expires_at <= ? ORDER BY expires_at LIMIT ?
);
