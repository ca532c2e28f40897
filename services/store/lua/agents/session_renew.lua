-- Prolong a worker's calls, and the leases of their attempts.
-- Invariant: a call that another worker has taken, or that has ended, stays so.
-- KEYS attempts calls calls_due   ARGV worker claim_ms idle_ms id...   Reply the calls that are lost
also_when_full(KEYS[1])
local attempts, calls, due = unpack(KEYS)
local now, lost = now_ms(), {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local attempt = string.match(id, '^[^/]*')
  if redis.call('HGET', calls, id .. ':worker') == ARGV[1] and redis.call('ZSCORE', attempts, attempt) then
    redis.call('ZADD', due, 'XX', now + tonumber(ARGV[2]), id)
    redis.call('ZADD', attempts, 'XX', now + tonumber(ARGV[3]), attempt)
  else
    lost[#lost + 1] = id
  end
end
return lost
