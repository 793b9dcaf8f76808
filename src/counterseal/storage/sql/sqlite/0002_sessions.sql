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
