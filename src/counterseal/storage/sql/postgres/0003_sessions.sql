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
