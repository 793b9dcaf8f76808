-- A plan that is made while a table is small stays until the table's statistics change. An index that
-- begins with the tenant looks as good then as the one for keys, and is read from end to end for every
-- call once the tenant has many. One by hash can be used for what it is for, and for nothing else.

DROP INDEX ledger_by_call;
CREATE INDEX ledger_by_call ON ledger USING hash (call_id);
