-- Counters are whole numbers: money is counted exactly, in millionths of its unit, by currency. What
-- `money` counted before was the price of calls, in USD unless a contract said otherwise.
ALTER TABLE counters RENAME TO inexact_counters;
DROP INDEX counters_by_day;

CREATE TABLE counters (
  tenant TEXT NOT NULL,
  run_id TEXT NOT NULL,              -- '' stands for the tenant itself
  name TEXT NOT NULL,
  spent INTEGER NOT NULL,            -- calls, tokens; money in millionths of its unit
  PRIMARY KEY (tenant, run_id, name)
) WITHOUT ROWID;

INSERT INTO counters (tenant, run_id, name, spent)
SELECT tenant, run_id,
  CASE WHEN name = 'money' OR name LIKE 'money/%'
    THEN CASE run_id WHEN '' THEN 'cost.day.USD' ELSE 'cost.run.USD' END || substr(name, 6)
    ELSE name END,
  CAST(round(CASE WHEN name = 'money' OR name LIKE 'money/%' THEN spent * 1000000 ELSE spent END)
    AS INTEGER)
FROM inexact_counters;

DROP TABLE inexact_counters;

-- A tenant's counter for a day has a name that ends in a slash and the day's number.
CREATE INDEX counters_by_day
ON counters (CAST(substr(name, length(rtrim(name, '0123456789')) + 1) AS INTEGER))
WHERE run_id = '' AND substr(rtrim(name, '0123456789'), -1) = '/';
