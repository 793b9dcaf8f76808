-- Counters are whole numbers: money is counted exactly, in millionths of its unit, by currency. What
-- `money` counted before was the price of calls, in USD unless a contract said otherwise.
UPDATE counters
SET spent = ceil(spent * 1000000),
  name = CASE run_id WHEN '' THEN 'cost.day.USD' ELSE 'cost.run.USD' END || substr(name, 6)
WHERE name = 'money' OR name LIKE 'money/%';

ALTER TABLE counters ALTER COLUMN spent TYPE BIGINT;
