-- Ids that a caller gives its call, the versions and references by which calls are found, and the
-- times of ledger entries. Entries and events of earlier times have none of them.

ALTER TABLE events
  ADD COLUMN caller_call_id TEXT COLLATE "C",
  ADD COLUMN workflow_id TEXT COLLATE "C",
  ADD COLUMN conversation_id TEXT COLLATE "C",
  ADD COLUMN session_id TEXT COLLATE "C";

CREATE INDEX events_by_caller_call ON events (tenant, caller_call_id, number)
WHERE caller_call_id IS NOT NULL;
CREATE INDEX events_by_version ON events (tenant, version, number, segment) WHERE code IS NOT NULL;
CREATE INDEX events_by_external_ref ON events (tenant, external_ref, number, segment)
WHERE code IS NOT NULL AND external_ref IS NOT NULL;
CREATE INDEX events_by_workflow ON events (tenant, workflow_id, number, segment)
WHERE code IS NOT NULL AND workflow_id IS NOT NULL;
CREATE INDEX events_by_conversation ON events (tenant, conversation_id, number, segment)
WHERE code IS NOT NULL AND conversation_id IS NOT NULL;
CREATE INDEX events_by_session ON events (tenant, session_id, number, segment)
WHERE code IS NOT NULL AND session_id IS NOT NULL;

ALTER TABLE ledger
  ADD COLUMN created_at DOUBLE PRECISION,
  ADD COLUMN completed_at DOUBLE PRECISION;
