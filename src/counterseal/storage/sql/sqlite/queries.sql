-- Every statement that the SQLite store runs, by name. `?` are in the order of the columns.

-- name: find_run
SELECT started_at, objective, allowed_tools, budgets, deadline, config, turn, changes, pins, seen,
  refused
FROM runs WHERE tenant = ? AND run_id = ?;

-- name: find_state
SELECT key, value, version, untrusted FROM run_state WHERE tenant = ? AND run_id = ?;

-- name: find_implicit
-- The run that somebody is in who names none, and when they used it last.
SELECT run_id, used_at FROM implicit_runs WHERE tenant = ? AND agent = ? AND user = ?;

-- name: use_implicit
INSERT INTO implicit_runs (tenant, agent, user, run_id, used_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, agent, user) DO UPDATE SET run_id = excluded.run_id, used_at = excluded.used_at;

-- name: open_run
INSERT INTO runs (tenant, run_id, started_at, objective, allowed_tools, budgets, deadline, config,
  turn, changes, pins, seen, refused)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, run_id) DO NOTHING;

-- name: pin
UPDATE runs SET pins = ? WHERE tenant = ? AND run_id = ?;

-- name: progress
-- What a run has seen, whose refusals it counts, and how often its state was changed.
SELECT seen, refused, changes FROM runs WHERE tenant = ? AND run_id = ?;

-- name: advance
UPDATE runs SET seen = ?, refused = ?, changes = ? WHERE tenant = ? AND run_id = ?;

-- name: begin_turn
UPDATE runs SET turn = turn + 1, changes = changes + ? WHERE tenant = ? AND run_id = ?;

-- name: find_key
SELECT value, version, untrusted FROM run_state WHERE tenant = ? AND run_id = ? AND key = ?;

-- name: leave
INSERT INTO run_state (tenant, run_id, key, value, version, untrusted) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, run_id, key) DO UPDATE
SET value = excluded.value, version = excluded.version, untrusted = excluded.untrusted;

-- name: forget
UPDATE run_state SET value = NULL, version = version + 1, untrusted = 0
WHERE tenant = ? AND run_id = ? AND key = ?;

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

-- name: rests_on
-- What an admission rests on: the run's pins, and how often its state was changed.
SELECT pins, changes FROM runs WHERE tenant = ? AND run_id = ?;

-- name: find_entry
SELECT request_hash, status, phase, call_id, tool, version, fence, attempts, unknown_since,
  observation
FROM ledger WHERE tenant = ? AND key = ?;

-- name: reserve
INSERT INTO ledger (tenant, key, request_hash, status, phase, call_id, tool, version, fence,
  attempts, unknown_since, observation)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, key) DO UPDATE
SET request_hash = excluded.request_hash, status = excluded.status, phase = excluded.phase,
  call_id = excluded.call_id, tool = excluded.tool, version = excluded.version,
  fence = excluded.fence, attempts = excluded.attempts, unknown_since = excluded.unknown_since,
  observation = excluded.observation;

-- name: settle
-- Changes nothing when somebody else holds the entry by now, or has settled it.
UPDATE ledger
SET request_hash = ?, status = ?, phase = ?, call_id = ?, tool = ?, version = ?, attempts = ?,
  unknown_since = ?, observation = ?
WHERE tenant = ? AND key = ? AND fence = ? AND status = 'PENDING';

-- name: find_held
SELECT approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id, tool,
  version, arguments, agent, user, scopes, reason, rule, before, version_seen, created_at, trace_id
FROM held WHERE tenant = ? AND approval_id = ?;

-- name: last_held
-- The last proposal that was held under a key.
SELECT approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id, tool,
  version, arguments, agent, user, scopes, reason, rule, before, version_seen, created_at, trace_id
FROM held WHERE tenant = ? AND key = ? ORDER BY rowid DESC LIMIT 1;

-- name: held_status
SELECT status FROM held WHERE tenant = ? AND approval_id = ?;

-- name: hold
INSERT INTO held (tenant, approval_id, key, status, approval_hash, contract_hash, approvers,
  call_id, run_id, tool, version, arguments, agent, user, scopes, reason, rule, before,
  version_seen, created_at, trace_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: decide
UPDATE held SET status = ? WHERE tenant = ? AND approval_id = ?;

-- name: refuse
INSERT INTO refusals (tenant, run_id, tool, fingerprint, times) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, run_id, tool, fingerprint) DO UPDATE SET times = times + excluded.times;

-- name: refused
SELECT times FROM refusals WHERE tenant = ? AND run_id = ? AND tool = ? AND fingerprint = ?;

-- name: mend
DELETE FROM refusals WHERE tenant = ? AND run_id = ? AND tool = ?;

-- name: last_event
SELECT max(number) FROM events WHERE tenant = ?;

-- name: record
INSERT INTO events (tenant, number, type, run_id, call_id, tool, version, agent, user, trace_id,
  occurred_at, decision, policy_version, external_ref, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: events
SELECT number, type, tenant, run_id, call_id, tool, version, agent, user, trace_id, occurred_at,
  decision, policy_version, external_ref, body
FROM events WHERE tenant = ? ORDER BY number;

-- name: events_of_run
SELECT number, type, tenant, run_id, call_id, tool, version, agent, user, trace_id, occurred_at,
  decision, policy_version, external_ref, body
FROM events WHERE tenant = ? AND run_id = ? ORDER BY number;

-- name: events_of_call
SELECT number, type, tenant, run_id, call_id, tool, version, agent, user, trace_id, occurred_at,
  decision, policy_version, external_ref, body
FROM events WHERE tenant = ? AND call_id = ? ORDER BY number;

-- name: keep
INSERT INTO vault (tenant, pointer, raw) VALUES (?, ?, ?);
