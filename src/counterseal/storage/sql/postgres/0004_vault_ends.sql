-- Values in the vault may have a time of their own at which they are deleted.

ALTER TABLE vault ADD COLUMN forget_at DOUBLE PRECISION;

CREATE INDEX vault_by_end ON vault (forget_at) WHERE forget_at IS NOT NULL;
