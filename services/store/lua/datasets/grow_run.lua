-- Tell a run how many rows its dataset has. The run's next epoch uses all of them.
-- Invariant: a dataset only grows, so the largest number that any caller has seen is right.
-- KEYS order
-- ARGV rows
local known = redis.call('HGET', order, 'dataset_rows')
if known and tonumber(known) < tonumber(rows) then
  redis.call('HSET', order, 'dataset_rows', rows)
end
return 0
