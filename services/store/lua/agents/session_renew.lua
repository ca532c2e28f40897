-- Prolong a worker's calls, and the leases of their attempts.
-- Invariant: a call that another worker has claimed, or that has ended, stays as it is.
-- KEYS deadlines calls calls_due
-- ARGV worker claim_ms idle_ms ids...
-- Reply the calls that the worker has lost
also_when_full(deadlines)
local now, lost = now_ms(), {}
for _, id in ipairs(ids) do
  local attempt = string.match(id, '^[^/]*')
  if redis.call('HGET', calls, id .. ':worker') == worker and redis.call('ZSCORE', deadlines, attempt) then
    redis.call('ZADD', calls_due, 'XX', now + claim_ms, id)
    redis.call('ZADD', deadlines, 'XX', now + idle_ms, attempt)
  else
    lost[#lost + 1] = id
  end
end
return lost
