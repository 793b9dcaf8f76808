-- The case database of the offices. Every row belongs to one tenant.

CREATE TABLE companies (
    tenant      TEXT NOT NULL,
    register_no TEXT NOT NULL,
    name        TEXT NOT NULL,
    sector      TEXT NOT NULL,
    mailbox     TEXT NOT NULL,              -- the only address that notices go to
    PRIMARY KEY (tenant, register_no)
) STRICT;

CREATE TABLE cases (
    case_id     TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL,
    register_no TEXT NOT NULL,
    kind        TEXT NOT NULL CHECK (kind IN ('permit', 'inspection', 'complaint')),
    subject     TEXT NOT NULL,
    status      TEXT NOT NULL,
    risk_level  TEXT NOT NULL CHECK (risk_level IN ('low', 'medium', 'high')),
    opened_on   TEXT NOT NULL,
    due_on      TEXT NOT NULL,
    version     INTEGER NOT NULL DEFAULT 1, -- one more with every change of status
    FOREIGN KEY (tenant, register_no) REFERENCES companies (tenant, register_no)
) STRICT;

CREATE TABLE evidence (
    evidence_id TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL,
    case_id     TEXT NOT NULL REFERENCES cases (case_id),
    kind        TEXT NOT NULL,
    title       TEXT NOT NULL,
    received_on TEXT NOT NULL,
    text        TEXT NOT NULL               -- as it was uploaded: somebody else's words
) STRICT;

CREATE VIRTUAL TABLE evidence_words USING fts5 (
    title, text, content = 'evidence', tokenize = 'porter unicode61'
);

CREATE TABLE policies (
    tenant         TEXT NOT NULL,
    policy_id      TEXT NOT NULL,
    topic          TEXT NOT NULL,
    title          TEXT NOT NULL,
    section        TEXT NOT NULL,
    text           TEXT NOT NULL,
    in_force_since TEXT NOT NULL,
    PRIMARY KEY (tenant, policy_id),
    UNIQUE (tenant, topic)
) STRICT;

-- What agents leave behind. `call_key` is the key that Counterseal hands to the tool: the same call
-- made again finds its own row.

CREATE TABLE drafts (
    draft_id   TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    case_id    TEXT NOT NULL REFERENCES cases (case_id),
    template   TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    channel    TEXT NOT NULL,
    amount_eur INTEGER NOT NULL,
    facts      TEXT NOT NULL,               -- a JSON list of evidence ids
    subject    TEXT NOT NULL,
    body       TEXT NOT NULL,
    status     TEXT NOT NULL DEFAULT 'draft' CHECK (status IN ('draft', 'in_review', 'sent')),
    version    INTEGER NOT NULL DEFAULT 1,  -- one more with every change of status
    made_by    TEXT NOT NULL,
    made_at    TEXT NOT NULL,
    call_key   TEXT NOT NULL,
    UNIQUE (tenant, call_key),
    UNIQUE (tenant, case_id, template, revision)
) STRICT;

CREATE TABLE reviews (
    review_id TEXT PRIMARY KEY,
    tenant    TEXT NOT NULL,
    draft_id  TEXT NOT NULL UNIQUE REFERENCES drafts (draft_id),
    reason    TEXT NOT NULL,
    asked_by  TEXT NOT NULL,
    asked_at  TEXT NOT NULL,
    call_key  TEXT NOT NULL,
    UNIQUE (tenant, call_key)
) STRICT;

CREATE TABLE notices (
    notice_id  TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    draft_id   TEXT NOT NULL UNIQUE REFERENCES drafts (draft_id),
    recipient  TEXT NOT NULL,
    channel    TEXT NOT NULL,
    message_id TEXT NOT NULL UNIQUE,
    begun_at   TEXT NOT NULL,               -- written down before anything is sent
    sent_at    TEXT,                        -- once the mail server has said that it has it
    call_key   TEXT NOT NULL,
    UNIQUE (tenant, call_key)
) STRICT;

CREATE TABLE status_history (
    case_id    TEXT NOT NULL REFERENCES cases (case_id),
    version    INTEGER NOT NULL,            -- the case's version from then on
    tenant     TEXT NOT NULL,
    previous   TEXT NOT NULL,
    status     TEXT NOT NULL,
    reason     TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    changed_at TEXT NOT NULL,
    call_key   TEXT NOT NULL,
    PRIMARY KEY (case_id, version),
    UNIQUE (tenant, call_key)
) STRICT;
