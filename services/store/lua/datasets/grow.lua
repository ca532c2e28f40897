-- Tell a run how many rows its dataset has; its next epoch uses all of them.
-- Invariant: a dataset only grows, so the largest number that anyone has seen is the truth.
-- KEYS order   ARGV rows
local rows = redis.call('HGET', KEYS[1], 'dataset_rows')
if rows and tonumber(rows) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'dataset_rows', ARGV[1])
end
return 0
