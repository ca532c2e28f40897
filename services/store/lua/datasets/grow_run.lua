-- Tell a run how many rows its dataset has. The run's next epoch uses all of them.
-- Invariant: a dataset only grows, so the largest number that any caller has seen is right.
-- KEYS order
-- ARGV rows
local rows = redis.call('HGET', order, 'dataset_rows')
if rows and tonumber(rows) < tonumber(ARGV[1]) then
  redis.call('HSET', order, 'dataset_rows', ARGV[1])
end
return 0
