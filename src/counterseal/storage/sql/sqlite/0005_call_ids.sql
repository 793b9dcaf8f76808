-- Ids that a caller gives its call, the versions and references by which calls are found, and the
-- times of ledger entries. Entries and events of earlier times have none of them.

ALTER TABLE events ADD COLUMN caller_call_id TEXT;
ALTER TABLE events ADD COLUMN workflow_id TEXT;
ALTER TABLE events ADD COLUMN conversation_id TEXT;
ALTER TABLE events ADD COLUMN session_id TEXT;

CREATE INDEX events_by_caller_call ON events (tenant, caller_call_id)
WHERE caller_call_id IS NOT NULL;
CREATE INDEX events_by_version ON events (tenant, version, number) WHERE code IS NOT NULL;
CREATE INDEX events_by_external_ref ON events (tenant, external_ref, number)
WHERE code IS NOT NULL AND external_ref IS NOT NULL;
CREATE INDEX events_by_workflow ON events (tenant, workflow_id, number)
WHERE code IS NOT NULL AND workflow_id IS NOT NULL;
CREATE INDEX events_by_conversation ON events (tenant, conversation_id, number)
WHERE code IS NOT NULL AND conversation_id IS NOT NULL;
CREATE INDEX events_by_session ON events (tenant, session_id, number)
WHERE code IS NOT NULL AND session_id IS NOT NULL;

ALTER TABLE ledger ADD COLUMN created_at REAL;
ALTER TABLE ledger ADD COLUMN completed_at REAL;
