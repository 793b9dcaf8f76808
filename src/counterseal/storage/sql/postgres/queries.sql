-- Every statement that the Postgres store runs, by name.
--
-- Values for many rows come as arrays, one for each column, in the order of the columns.
-- Rows that a transaction may change are locked first, in sorted order, and read; then they are written.
-- A row that was not there is inserted with ON CONFLICT DO NOTHING: the second worker sees that one
-- is missing, and looks again.

-- --- rows that a transaction needs ---------------------------------------------------------------

-- name: load
-- Locks, and shows: entries, runs, held proposals, counters, rates; then the registry's last change,
-- and the time.
WITH
  entries AS (
    SELECT l.tenant, l.key, l.request_hash, l.status, l.phase, l.call_id, l.run_id, l.tool, l.version,
      l.fence, l.attempts, l.unknown_since, l.observation, l.worker, l.looks, l.created_at,
      l.completed_at, l.lease_until, l.expires_at, l.awaited
    FROM unnest($1::text[], $2::text[]) AS w (tenant, key)
    JOIN ledger AS l ON l.tenant = w.tenant AND l.key = w.key
    ORDER BY l.tenant, l.key FOR UPDATE OF l
  ),
  lives AS (
    SELECT r.tenant, r.run_id, r.turn, r.changes, r.pins, r.seen, r.refused
    FROM unnest($3::text[], $4::text[]) AS w (tenant, run_id)
    JOIN runs AS r ON r.tenant = w.tenant AND r.run_id = w.run_id
    ORDER BY r.tenant, r.run_id FOR UPDATE OF r
  ),
  approvals AS (
    SELECT h.tenant, h.approval_id, h.key, h.status, h.approval_hash, h.contract_hash, h.approvers,
      h.call_id, h.run_id, h.tool, h.version, h.agent, h.user_id, h.reason, h.rule, h.risk, h.demand,
      h.version_seen, h.created_at, h.expires_at, h.trace_id, h.sealed, h.votes, h.token, h.latest,
      h.awaited
    FROM unnest($5::text[], $6::text[]) AS w (tenant, approval_id)
    JOIN held AS h ON h.tenant = w.tenant AND h.approval_id = w.approval_id
    ORDER BY h.tenant, h.approval_id FOR UPDATE OF h
  ),
  spent AS (
    SELECT c.tenant, c.run_id, c.name, c.spent
    FROM unnest($7::text[], $8::text[], $9::text[]) AS w (tenant, run_id, name)
    JOIN counters AS c ON c.tenant = w.tenant AND c.run_id = w.run_id AND c.name = w.name
    ORDER BY c.tenant, c.run_id, c.name FOR UPDATE OF c
  ),
  arrivals AS (
    SELECT r.tenant, r.name, r.arrival
    FROM unnest($10::text[], $11::text[]) AS w (tenant, name)
    JOIN rates AS r ON r.tenant = w.tenant AND r.name = w.name
    ORDER BY r.tenant, r.name FOR UPDATE OF r
  )
SELECT
  (SELECT array_agg(ROW(e.*)) FROM entries AS e),
  (SELECT array_agg(ROW(l.*)) FROM lives AS l),
  (SELECT array_agg(ROW(a.*)) FROM approvals AS a),
  (SELECT array_agg(ROW(s.*)) FROM spent AS s),
  (SELECT array_agg(ROW(a.*)) FROM arrivals AS a),
  (SELECT coalesce(max(number), 0) FROM registry_changes),
  extract(epoch FROM clock_timestamp())::float8;

-- name: load_implicit
-- The runs of callers that name none, and when they were last used.
SELECT i.tenant, i.agent, i.user_id, i.run_id, i.used_at
FROM unnest($1::text[], $2::text[], $3::text[]) AS w (tenant, agent, user_id)
JOIN implicit_runs AS i ON i.tenant = w.tenant AND i.agent = w.agent AND i.user_id = w.user_id
ORDER BY i.tenant, i.agent, i.user_id FOR UPDATE OF i;

-- name: load_last_held
-- The ids of callers' last proposals under keys. `look` locks them, and looks again.
SELECT h.tenant, h.approval_id
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS w (tenant, key, agent, user_id)
JOIN held AS h ON h.tenant = w.tenant AND h.key = w.key AND h.agent = w.agent
  AND coalesce(h.user_id, '') = w.user_id AND h.latest;

-- name: load_due
SELECT d.tenant, d.kind, d.key, d.call_id, d.run_id, d.tool, d.version, d.body, d.fence, d.tries,
  d.failed, d.since, d.due_at
FROM unnest($1::text[], $2::text[], $3::text[]) AS w (tenant, kind, key)
JOIN due AS d ON d.tenant = w.tenant AND d.kind = w.kind AND d.key = w.key
ORDER BY d.tenant, d.kind, d.key FOR UPDATE OF d;

-- name: load_refusals
SELECT r.tenant, r.run_id, r.tool, r.fingerprint, r.times
FROM unnest($1::text[], $2::text[], $3::text[]) AS w (tenant, run_id, tool)
JOIN refusals AS r ON r.tenant = w.tenant AND r.run_id = w.run_id AND r.tool = w.tool
ORDER BY r.tenant, r.run_id, r.tool, r.fingerprint FOR UPDATE OF r;

-- name: load_state
-- Guarded by the lock on the run, and therefore looked at after that was had. NULL: all keys.
SELECT s.tenant, s.run_id, s.key, s.value, s.version, s.untrusted
FROM unnest($1::text[], $2::text[], $3::text[]) AS w (tenant, run_id, key)
JOIN run_state AS s ON s.tenant = w.tenant AND s.run_id = w.run_id
WHERE w.key IS NULL OR s.key = w.key;

-- --- rows that a transaction writes --------------------------------------------------------------

-- name: write
-- Writes what calls change: existing and new entries, counters, rates, events, values of the vault.
-- Returns the number of new entries. `resume` is written only where an entry was reserved.
WITH
  changed AS (
    UPDATE ledger AS l
    SET request_hash = w.request_hash, status = w.status, phase = w.phase, call_id = w.call_id,
      run_id = w.run_id, tool = w.tool, version = w.version, fence = w.fence, attempts = w.attempts,
      unknown_since = w.unknown_since, observation = w.observation, worker = w.worker,
      looks = w.looks, created_at = w.created_at, completed_at = w.completed_at,
      lease_until = w.lease_until, expires_at = w.expires_at, awaited = w.awaited,
      resume = CASE WHEN w.anew THEN w.resume ELSE l.resume END
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::text[], $6::text[], $7::text[],
      $8::text[], $9::text[], $10::bigint[], $11::bigint[], $12::float8[], $13::text[], $14::text[],
      $15::bigint[], $16::float8[], $17::float8[], $18::float8[], $19::float8[], $20::boolean[],
      $21::bytea[], $22::boolean[])
      AS w (tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence, attempts,
        unknown_since, observation, worker, looks, created_at, completed_at, lease_until, expires_at,
        awaited, resume, anew)
    WHERE l.tenant = w.tenant AND l.key = w.key
  ),
  new AS (
    INSERT INTO ledger (tenant, key, request_hash, status, phase, call_id, run_id, tool, version,
      fence, attempts, unknown_since, observation, worker, looks, created_at, completed_at,
      lease_until, expires_at, awaited, resume)
    SELECT * FROM unnest($23::text[], $24::text[], $25::bytea[], $26::text[], $27::text[],
      $28::text[], $29::text[], $30::text[], $31::text[], $32::bigint[], $33::bigint[],
      $34::float8[], $35::text[], $36::text[], $37::bigint[], $38::float8[], $39::float8[],
      $40::float8[], $41::float8[], $42::boolean[], $43::bytea[])
    ON CONFLICT DO NOTHING RETURNING 1
  ),
  spent AS (
    UPDATE counters AS c SET spent = w.spent
    FROM unnest($44::text[], $45::text[], $46::text[], $47::bigint[])
      AS w (tenant, run_id, name, spent)
    WHERE c.tenant = w.tenant AND c.run_id = w.run_id AND c.name = w.name
  ),
  arrived AS (
    UPDATE rates AS r SET arrival = w.arrival
    FROM unnest($48::text[], $49::text[], $50::float8[]) AS w (tenant, name, arrival)
    WHERE r.tenant = w.tenant AND r.name = w.name
  ),
  recorded AS (
    INSERT INTO events (type, tenant, run_id, call_id, tool, version, agent, user_id, trace_id,
      occurred_at, decision, policy_version, external_ref, body, code, tally, cost,
      caller_call_id, workflow_id, conversation_id, session_id,
      number, segment, seq, salt, digest, hash)
    SELECT * FROM unnest($51::text[], $52::text[], $53::text[], $54::text[], $55::text[],
      $56::text[], $57::text[], $58::text[], $59::text[], $60::float8[], $61::text[], $62::text[],
      $63::text[], $64::text[], $65::text[], $66::text[], $67::float8[], $68::text[], $69::text[],
      $70::text[], $71::text[], $72::bigint[], $73::text[], $74::bigint[], $75::bytea[],
      $76::bytea[], $77::bytea[])
  ),
  kept AS (
    INSERT INTO vault (tenant, pointer, raw, kept_at, forget_at)
    SELECT w.tenant, w.pointer, w.raw, $82::float8, $82::float8 + w.keep_for
    FROM unnest($78::text[], $79::text[], $80::bytea[], $81::float8[])
      AS w (tenant, pointer, raw, keep_for)
  )
SELECT count(*) FROM new;

-- name: insert_runs
INSERT INTO runs (tenant, run_id, started_at, objective, allowed_tools, budgets, deadline, config,
  turn, changes, pins, seen, refused)
SELECT * FROM unnest($1::text[], $2::text[], $3::float8[], $4::text[], $5::text[], $6::text[],
  $7::float8[], $8::text[], $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::text[])
ON CONFLICT DO NOTHING;

-- name: update_runs
UPDATE runs AS r
SET turn = w.turn, changes = w.changes, pins = w.pins, seen = w.seen, refused = w.refused
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[])
  AS w (tenant, run_id, turn, changes, pins, seen, refused)
WHERE r.tenant = w.tenant AND r.run_id = w.run_id;

-- name: write_state
INSERT INTO run_state (tenant, run_id, key, value, version, untrusted)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::boolean[])
ON CONFLICT (tenant, run_id, key) DO UPDATE
SET value = excluded.value, version = excluded.version, untrusted = excluded.untrusted;

-- name: insert_implicit
INSERT INTO implicit_runs (tenant, agent, user_id, run_id, used_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::float8[])
ON CONFLICT DO NOTHING;

-- name: update_implicit
UPDATE implicit_runs AS i SET run_id = w.run_id, used_at = w.used_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::float8[])
  AS w (tenant, agent, user_id, run_id, used_at)
WHERE i.tenant = w.tenant AND i.agent = w.agent AND i.user_id = w.user_id;

-- name: insert_counters
INSERT INTO counters (tenant, run_id, name, spent, day)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
ON CONFLICT DO NOTHING;

-- name: insert_rates
INSERT INTO rates (tenant, name, arrival)
SELECT * FROM unnest($1::text[], $2::text[], $3::float8[])
ON CONFLICT DO NOTHING;

-- name: insert_refusals
INSERT INTO refusals (tenant, run_id, tool, fingerprint, times)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
ON CONFLICT DO NOTHING;

-- name: update_refusals
UPDATE refusals AS r SET times = w.times
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
  AS w (tenant, run_id, tool, fingerprint, times)
WHERE r.tenant = w.tenant AND r.run_id = w.run_id AND r.tool = w.tool
  AND r.fingerprint = w.fingerprint;

-- name: delete_refusals
DELETE FROM refusals AS r
USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS w (tenant, run_id, tool, fingerprint)
WHERE r.tenant = w.tenant AND r.run_id = w.run_id AND r.tool = w.tool
  AND r.fingerprint = w.fingerprint;

-- name: update_held
UPDATE held AS h
SET status = w.status, votes = w.votes, token = w.token, latest = w.latest, awaited = w.awaited
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::boolean[])
  AS w (tenant, approval_id, status, votes, token, latest, awaited)
WHERE h.tenant = w.tenant AND h.approval_id = w.approval_id;

-- name: insert_held
INSERT INTO held (tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id,
  run_id, tool, version, agent, user_id, reason, rule, risk, demand, version_seen, created_at,
  expires_at, trace_id, sealed, votes, token, latest, awaited)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
  $7::bigint[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[],
  $14::text[], $15::text[], $16::text[], $17::text[], $18::text[], $19::float8[], $20::float8[],
  $21::text[], $22::bytea[], $23::text[], $24::text[], $25::boolean[], $26::boolean[])
ON CONFLICT DO NOTHING;

-- name: load_sessions
SELECT s.session, s.user_id, s.created_at, s.seen_at, s.expires_at, s.facts
FROM unnest($1::text[]) AS w (session) JOIN sessions AS s ON s.session = w.session
ORDER BY s.session FOR UPDATE OF s;

-- name: insert_sessions
INSERT INTO sessions (session, user_id, created_at, seen_at, expires_at, facts)
SELECT * FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::float8[], $6::text[])
ON CONFLICT DO NOTHING;

-- name: update_sessions
UPDATE sessions AS s
SET user_id = w.user_id, created_at = w.created_at, seen_at = w.seen_at, expires_at = w.expires_at,
  facts = w.facts
FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::float8[], $6::text[])
  AS w (session, user_id, created_at, seen_at, expires_at, facts)
WHERE s.session = w.session;

-- name: delete_sessions
DELETE FROM sessions AS s USING unnest($1::text[]) AS w (session) WHERE s.session = w.session;

-- name: load_contracts
SELECT c.tool, c.version, c.contract_hash, c.record, c.held, c.registered_at
FROM unnest($1::text[], $2::text[], $3::text[]) AS w (tool, version, contract_hash)
JOIN contracts AS c USING (tool, version, contract_hash);

-- name: insert_contracts
INSERT INTO contracts (tool, version, contract_hash, record, held, registered_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::float8[])
ON CONFLICT DO NOTHING;

-- name: insert_changes
-- Changes to the registry, in the order of their numbers.
INSERT INTO registry_changes (number, what) SELECT * FROM unnest($1::bigint[], $2::text[])
ON CONFLICT DO NOTHING;

-- name: insert_due
INSERT INTO due (tenant, kind, key, call_id, run_id, tool, version, body, fence, tries, failed, since,
  due_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
  $7::text[], $8::text[], $9::bigint[], $10::bigint[], $11::text[], $12::float8[], $13::float8[])
ON CONFLICT DO NOTHING;

-- name: update_due
UPDATE due AS d
SET call_id = w.call_id, run_id = w.run_id, tool = w.tool, version = w.version, body = w.body,
  fence = w.fence, tries = w.tries, failed = w.failed, since = w.since, due_at = w.due_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
  $8::text[], $9::bigint[], $10::bigint[], $11::text[], $12::float8[], $13::float8[])
  AS w (tenant, kind, key, call_id, run_id, tool, version, body, fence, tries, failed, since, due_at)
WHERE d.tenant = w.tenant AND d.kind = w.kind AND d.key = w.key;

-- name: delete_due
DELETE FROM due AS d USING unnest($1::text[], $2::text[], $3::text[]) AS w (tenant, kind, key)
WHERE d.tenant = w.tenant AND d.kind = w.kind AND d.key = w.key;

-- name: forget
DELETE FROM vault AS v USING unnest($1::text[], $2::text[]) AS w (tenant, pointer)
WHERE v.tenant = w.tenant AND v.pointer = w.pointer;

-- name: notify
SELECT pg_notify('counterseal', w) FROM unnest($1::text[]) AS w;

-- --- reads ---------------------------------------------------------------------------------------

-- name: recall
-- For many calls at once: entries under keys, held proposals under keys (a caller's last, or
-- any caller's), counters, rates, and the time.
SELECT
  (
    SELECT array_agg(ROW(l.tenant, l.key, l.request_hash, l.status, l.phase, l.call_id, l.run_id,
      l.tool, l.version, l.fence, l.attempts, l.unknown_since, l.observation, l.worker, l.looks,
      l.created_at, l.completed_at, l.lease_until, l.expires_at, l.awaited))
    FROM unnest($1::text[], $2::text[]) AS w (tenant, key)
    JOIN ledger AS l ON l.tenant = w.tenant AND l.key = w.key
  ),
  (
    SELECT array_agg(ROW(h.tenant, h.approval_id, h.key, h.status, h.approval_hash, h.contract_hash,
      h.approvers, h.call_id, h.run_id, h.tool, h.version, h.agent, h.user_id, h.reason, h.rule,
      h.risk, h.demand, h.version_seen, h.created_at, h.expires_at, h.trace_id, h.sealed, h.votes,
      h.token, h.latest, h.awaited, w.agent, w.user_id))
    FROM unnest($6::text[], $7::text[], $8::text[], $9::text[]) AS w (tenant, key, agent, user_id)
    CROSS JOIN LATERAL (
      SELECT * FROM held AS o
      WHERE o.tenant = w.tenant AND o.key = w.key AND o.latest
        AND (w.agent IS NULL OR (o.agent = w.agent AND coalesce(o.user_id, '') = w.user_id))
      ORDER BY o.number DESC LIMIT 1
    ) AS h
  ),
  (
    SELECT array_agg(ROW(c.tenant, c.run_id, c.name, c.spent))
    FROM unnest($3::text[], $4::text[]) AS w (tenant, run_id)
    JOIN counters AS c ON c.tenant = w.tenant AND c.run_id = w.run_id
  ),
  (
    SELECT array_agg(ROW(r.tenant, r.name, r.arrival))
    FROM unnest($5::text[]) AS w (tenant) JOIN rates AS r ON r.tenant = w.tenant
  ),
  extract(epoch FROM clock_timestamp())::float8;

-- name: look_up
SELECT tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence, attempts,
  unknown_since, observation, worker, looks, created_at, completed_at, lease_until, expires_at,
  awaited, resume, extract(epoch FROM clock_timestamp())::float8
FROM ledger WHERE tenant = $1 AND key = $2;

-- name: look_up_call
SELECT tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence, attempts,
  unknown_since, observation, worker, looks, created_at, completed_at, lease_until, expires_at,
  awaited, resume, extract(epoch FROM clock_timestamp())::float8
FROM ledger WHERE tenant = $1 AND call_id = $2 ORDER BY key LIMIT $3;

-- name: find_runs
-- Many at once, each with its state.
SELECT r.tenant, r.run_id, r.started_at, r.objective, r.allowed_tools, r.budgets, r.deadline, r.config,
  r.turn, r.changes, r.pins, r.seen, r.refused,
  ARRAY(
    SELECT ROW(s.key, s.value, s.version, s.untrusted)
    FROM run_state AS s WHERE s.tenant = r.tenant AND s.run_id = r.run_id
  )
FROM unnest($1::text[], $2::text[]) AS w (tenant, run_id)
JOIN runs AS r ON r.tenant = w.tenant AND r.run_id = w.run_id;

-- name: find_implicit
SELECT i.tenant, i.agent, i.user_id, i.run_id, i.used_at
FROM unnest($1::text[], $2::text[], $3::text[]) AS w (tenant, agent, user_id)
JOIN implicit_runs AS i ON i.tenant = w.tenant AND i.agent = w.agent AND i.user_id = w.user_id;

-- name: find_held
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user_id, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token, latest, awaited
FROM held WHERE tenant = $1 AND approval_id = $2;

-- name: list_held
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user_id, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token, latest, awaited
FROM held WHERE tenant = $1 AND status = $2
  AND (expires_at, approval_id) > ($3::float8, $4::text)
  AND (expires_at, approval_id) < ($5::float8, $6::text)
ORDER BY expires_at, approval_id LIMIT $7;

-- name: newest_held
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user_id, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token, latest, awaited
FROM held WHERE tenant = $1 AND status = $2
  AND (expires_at, approval_id) > ($3::float8, $4::text)
  AND (expires_at, approval_id) < ($5::float8, $6::text)
ORDER BY expires_at DESC, approval_id DESC LIMIT $7;

-- name: list_all_held
-- Requests of all tenants.
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user_id, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token, latest, awaited
FROM held WHERE status = $1
  AND (expires_at, approval_id) > ($2::float8, $3::text)
  AND (expires_at, approval_id) < ($4::float8, $5::text)
ORDER BY expires_at, approval_id LIMIT $6;

-- name: newest_of_all_held
SELECT tenant, approval_id, key, status, approval_hash, contract_hash, approvers, call_id, run_id,
  tool, version, agent, user_id, reason, rule, risk, demand, version_seen, created_at, expires_at,
  trace_id, sealed, votes, token, latest, awaited
FROM held WHERE status = $1
  AND (expires_at, approval_id) > ($2::float8, $3::text)
  AND (expires_at, approval_id) < ($4::float8, $5::text)
ORDER BY expires_at DESC, approval_id DESC LIMIT $6;

-- name: find_due
SELECT tenant, kind, key, call_id, run_id, tool, version, body, fence, tries, failed, since, due_at
FROM due WHERE tenant = $1 AND kind = $2 AND key = $3;

-- name: escalated
SELECT tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence, attempts,
  unknown_since, observation, worker, looks, created_at, completed_at, lease_until, expires_at,
  awaited
FROM ledger
WHERE status = 'PENDING' AND phase = 'escalated' AND ($1::text IS NULL OR tenant = $1)
ORDER BY coalesce(unknown_since, 0), tenant, key LIMIT $2;

-- name: failed_due
SELECT tenant, kind, key, call_id, run_id, tool, version, body, fence, tries, failed, since, due_at
FROM due WHERE failed IS NOT NULL AND ($1::text IS NULL OR tenant = $1)
ORDER BY since, tenant, kind, key LIMIT $2;

-- name: fetch
SELECT raw FROM vault WHERE tenant = $1 AND pointer = $2;

-- name: fetch_all
SELECT pointer, raw FROM vault WHERE tenant = $1 AND pointer = ANY($2::text[]);

-- --- work ----------------------------------------------------------------------------------------

-- name: claim_orphans
-- Entries that another worker is claiming at this moment are skipped. A lease that ends later than
-- the longest possible was given before the clock was set back.
WITH found AS (
  SELECT tenant, key, lease_until, awaited FROM ledger
  WHERE status = 'PENDING' AND phase IS DISTINCT FROM 'escalated'
    AND (lease_until <= extract(epoch FROM statement_timestamp())::float8 - $1::float8
      OR lease_until > extract(epoch FROM statement_timestamp())::float8 + $6::float8)
    AND ($2::text[] IS NULL OR tool = ANY($2))
  ORDER BY lease_until, tenant, key LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE ledger AS l
SET fence = l.fence + 1, worker = $4::text, phase = 'unknown', looks = l.looks + 1, awaited = false,
  unknown_since = coalesce(l.unknown_since,
    least(found.lease_until, extract(epoch FROM statement_timestamp())::float8)),
  lease_until = extract(epoch FROM statement_timestamp())::float8 + $5::float8
FROM found WHERE l.tenant = found.tenant AND l.key = found.key
RETURNING l.tenant, l.key, l.request_hash, l.status, l.phase, l.call_id, l.run_id, l.tool, l.version,
  l.fence, l.attempts, l.unknown_since, l.observation, l.worker, l.looks, l.created_at,
  l.completed_at, l.lease_until, l.expires_at, found.awaited, l.resume, found.lease_until;

-- name: claim_due
WITH found AS (
  SELECT tenant, kind, key, due_at FROM due
  WHERE due_at <= extract(epoch FROM statement_timestamp())::float8 - $1::float8
    AND ($2::text[] IS NULL OR tool = ANY($2))
  ORDER BY due_at, tenant, kind, key LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE due AS d
SET fence = d.fence + 1, tries = d.tries + 1,
  due_at = extract(epoch FROM statement_timestamp())::float8 + $4::float8
FROM found WHERE d.tenant = found.tenant AND d.kind = found.kind AND d.key = found.key
RETURNING d.tenant, d.kind, d.key, d.call_id, d.run_id, d.tool, d.version, d.body, d.fence, d.tries,
  d.failed, d.since, d.due_at, found.due_at;

-- --- the registry --------------------------------------------------------------------------------

-- name: contracts
-- Registered contracts of the tools in a JSON list.
SELECT tool, version, contract_hash, record, held, registered_at FROM contracts
WHERE tool = ANY(ARRAY(SELECT json_array_elements_text($1::json)));

-- name: changes
SELECT number, what FROM registry_changes WHERE number > $1 ORDER BY number;

-- --- the record ----------------------------------------------------------------------------------

-- name: search
-- Oldest first. NULL does not narrow.
SELECT type, tenant, run_id, call_id, tool, version, agent, user_id, trace_id, occurred_at, decision,
  policy_version, external_ref, body, caller_call_id, workflow_id,
  conversation_id, session_id, number, segment
FROM events
WHERE tenant = $1 AND salt IS NOT NULL AND type IS NOT NULL
  AND ($2::text IS NULL OR call_id = $2) AND ($3::text IS NULL OR caller_call_id = $3)
  AND ($4::text IS NULL OR run_id = $4) AND ($5::text IS NULL OR tool = $5)
  AND ($6::text[] IS NULL OR type = ANY($6))
  AND number >= $7::bigint AND number < $8::bigint
  AND ($9::bigint IS NULL OR (number, segment) > ($9, $10::text))
ORDER BY number, segment LIMIT $11;

-- name: search_back
-- Newest first. NULL does not narrow.
SELECT type, tenant, run_id, call_id, tool, version, agent, user_id, trace_id, occurred_at, decision,
  policy_version, external_ref, body, caller_call_id, workflow_id,
  conversation_id, session_id, number, segment
FROM events
WHERE tenant = $1 AND salt IS NOT NULL AND type IS NOT NULL
  AND ($2::text IS NULL OR call_id = $2) AND ($3::text IS NULL OR caller_call_id = $3)
  AND ($4::text IS NULL OR run_id = $4) AND ($5::text IS NULL OR tool = $5)
  AND ($6::text[] IS NULL OR type = ANY($6))
  AND number >= $7::bigint AND number < $8::bigint
  AND ($9::bigint IS NULL OR (number, segment) < ($9, $10::text))
ORDER BY number DESC, segment DESC LIMIT $11;

-- name: calls
-- Calls, newest first: the last event that ended each.
SELECT type, tenant, run_id, call_id, tool, version, agent, user_id, trace_id, occurred_at, decision,
  policy_version, external_ref, body, caller_call_id, workflow_id,
  conversation_id, session_id, number, segment
FROM events AS e
WHERE tenant = $1 AND code IS NOT NULL
  AND ($2::text IS NULL OR tool = $2) AND ($3::text IS NULL OR version = $3)
  AND ($4::text IS NULL OR agent = $4) AND ($5::text IS NULL OR user_id = $5)
  AND ($6::text IS NULL OR run_id = $6)
  AND ($7::text IS NULL OR (code = $7 AND ($7 = 'SUCCESS' OR code <> 'SUCCESS')))
  AND ($8::text IS NULL OR external_ref = $8) AND ($9::text IS NULL OR caller_call_id = $9)
  AND ($10::text IS NULL OR workflow_id = $10) AND ($11::text IS NULL OR conversation_id = $11)
  AND ($12::text IS NULL OR session_id = $12)
  AND number >= $13::bigint AND number < $14::bigint
  AND ($15::bigint IS NULL OR (number, segment) < ($15, $16::text))
  AND NOT EXISTS (
    SELECT 1 FROM events AS later
    WHERE later.tenant = $1 AND later.call_id = e.call_id AND later.code IS NOT NULL
      AND (later.number, later.segment) > (e.number, e.segment)
  )
ORDER BY number DESC, segment DESC LIMIT $17;

-- name: tallies
-- Counts of a tenant: one step for each tally, then one look for each part of the time.
WITH RECURSIVE each AS (
  (
    SELECT tally FROM events WHERE tenant = $1 AND tally IS NOT NULL ORDER BY tally LIMIT 1
  )
  UNION ALL
  SELECT (
    SELECT e.tally FROM events AS e WHERE e.tenant = $1 AND e.tally > each.tally
    ORDER BY e.tally LIMIT 1
  )
  FROM each WHERE each.tally IS NOT NULL
)
SELECT w.part, each.tally, found.count, found.cost
FROM each
CROSS JOIN unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS w (part, since, until)
CROSS JOIN LATERAL (
  SELECT count(*) AS count, coalesce(sum(e.cost), 0) AS cost FROM events AS e
  WHERE e.tenant = $1 AND e.tally = each.tally AND e.number >= w.since AND e.number < w.until
) AS found
WHERE each.tally IS NOT NULL AND found.count > 0;

-- name: recorded
SELECT type, tenant, run_id, call_id, tool, version, agent, user_id, trace_id, occurred_at, decision,
  policy_version, external_ref, body, code, tally, cost, caller_call_id,
  workflow_id, conversation_id, session_id,
  number, segment, seq, salt, digest, hash
FROM events WHERE tenant = $1 AND (number, segment) > ($2::bigint, $3::text)
ORDER BY number, segment LIMIT $4;

-- name: is_recorded
SELECT 1 FROM events WHERE tenant = $1 AND number = $2 AND segment = $3;

-- name: heads
SELECT DISTINCT ON (segment) segment, number, seq, hash
FROM events WHERE tenant = $1 AND number >= $2 ORDER BY segment, number DESC;

-- name: tenants
-- Tenants with events or checkpoints: from one to the next, without reading all of their events.
WITH RECURSIVE known AS (
  SELECT least((SELECT min(tenant) FROM events), (SELECT min(tenant) FROM checkpoints)) AS tenant
  UNION ALL
  SELECT least(
    (SELECT min(e.tenant) FROM events AS e WHERE e.tenant > known.tenant),
    (SELECT min(c.tenant) FROM checkpoints AS c WHERE c.tenant > known.tenant)
  )
  FROM known WHERE known.tenant IS NOT NULL
)
SELECT tenant FROM known WHERE tenant IS NOT NULL;

-- name: checkpoints
SELECT tenant, number, sealed_at, heads, previous, hash, key_id, signature
FROM checkpoints WHERE tenant = $1 ORDER BY number;

-- name: seal
INSERT INTO checkpoints (tenant, number, sealed_at, heads, previous, hash, key_id, signature)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING RETURNING number;

-- --- forgetting ----------------------------------------------------------------------------------

-- name: expire_keys
-- A key that is free stays free; any other stays taken. Answers are deleted, except of calls that are
-- still to be verified or reversed.
WITH over AS (
  SELECT tenant, key FROM ledger AS l
  WHERE expires_at <= extract(epoch FROM statement_timestamp())::float8 AND NOT EXISTS (
    SELECT 1 FROM due AS d
    WHERE d.tenant = l.tenant AND d.kind IN ('verify', 'compensate') AND d.key = l.key
  )
  ORDER BY expires_at, tenant, key LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE ledger AS l
SET status = CASE WHEN l.status = 'FAILED_RETRYABLE' THEN l.status ELSE 'EXPIRED' END,
  observation = NULL, resume = NULL, expires_at = NULL
FROM over WHERE l.tenant = over.tenant AND l.key = over.key
RETURNING 1;

-- name: expire_kept
-- Deletes values whose own time is over.
WITH over AS (
  SELECT tenant, pointer FROM vault
  WHERE forget_at <= extract(epoch FROM statement_timestamp())::float8
  ORDER BY forget_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM vault AS v USING over WHERE v.tenant = over.tenant AND v.pointer = over.pointer
RETURNING 1;

-- name: expire_vault
WITH over AS (
  SELECT tenant, pointer FROM vault
  WHERE kept_at <= extract(epoch FROM statement_timestamp())::float8 - $1::float8
  ORDER BY kept_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM vault AS v USING over WHERE v.tenant = over.tenant AND v.pointer = over.pointer
RETURNING 1;

-- name: expire_held
-- Drops calls and tokens of decided requests.
WITH over AS (
  SELECT tenant, approval_id FROM held
  WHERE status <> 'waiting' AND (sealed <> '' OR token IS NOT NULL)
    AND expires_at <= extract(epoch FROM statement_timestamp())::float8 - $1::float8
  ORDER BY expires_at, tenant, approval_id LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE held AS h SET sealed = '', token = NULL
FROM over WHERE h.tenant = over.tenant AND h.approval_id = over.approval_id
RETURNING 1;

-- name: expire_counters
WITH over AS (
  SELECT tenant, run_id, name FROM counters
  WHERE day < floor(extract(epoch FROM statement_timestamp()) / 86400)::bigint - 2
  ORDER BY day LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM counters AS c USING over
WHERE c.tenant = over.tenant AND c.run_id = over.run_id AND c.name = over.name
RETURNING 1;

-- name: erasable
-- Whose log holds something from before a number that was not looked at yet, and where to go on.
WITH RECURSIVE known AS (
  (SELECT tenant FROM events ORDER BY tenant LIMIT 1)
  UNION ALL
  SELECT (SELECT e.tenant FROM events AS e WHERE e.tenant > known.tenant ORDER BY e.tenant LIMIT 1)
  FROM known WHERE known.tenant IS NOT NULL
)
SELECT known.tenant, coalesce(done.number, 0), coalesce(done.segment, '')
FROM known LEFT JOIN erasures AS done ON done.tenant = known.tenant
WHERE EXISTS (
  SELECT 1 FROM events AS e
  WHERE e.tenant = known.tenant AND e.number < $1::bigint
    AND (e.number, e.segment) > (coalesce(done.number, 0), coalesce(done.segment, ''))
)
ORDER BY known.tenant;

-- name: old_events
SELECT number, segment, type FROM events
WHERE tenant = $1 AND number < $2::bigint AND (number, segment) > ($3::bigint, $4::text)
ORDER BY number, segment LIMIT $5;

-- name: erase
UPDATE events AS e
SET salt = NULL, type = NULL, run_id = NULL, call_id = NULL, tool = NULL, version = NULL,
  agent = NULL, user_id = NULL, trace_id = NULL, occurred_at = NULL, decision = NULL,
  policy_version = NULL, external_ref = NULL, body = NULL, code = NULL, tally = NULL, cost = NULL,
  caller_call_id = NULL, workflow_id = NULL, conversation_id = NULL, session_id = NULL
FROM unnest($2::bigint[], $3::text[]) AS w (number, segment)
WHERE e.tenant = $1 AND e.number = w.number AND e.segment = w.segment;

-- name: erased
INSERT INTO erasures (tenant, number, segment) VALUES ($1, $2, $3)
ON CONFLICT (tenant) DO UPDATE SET number = excluded.number, segment = excluded.segment;

-- --- sessions ------------------------------------------------------------------------------------

-- name: find_session
SELECT session, user_id, created_at, seen_at, expires_at, facts FROM sessions WHERE session = $1;

-- name: end_sessions
DELETE FROM sessions WHERE user_id = $1 RETURNING 1;

-- name: expire_sessions
WITH over AS (
  SELECT session FROM sessions
  WHERE expires_at <= extract(epoch FROM statement_timestamp())::float8
  ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM sessions AS s USING over WHERE s.session = over.session
RETURNING 1;
