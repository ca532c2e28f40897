-- Note that the group of a live session could not be completed. All other ready sessions are leased before it.
-- Invariant: an attempt counts once, and only while it is held.
-- KEYS sessions sessions_ready order attempts
-- ARGV id attempt
-- Reply {times refused, 1 if any worker completed a group of the run since the first time, else 0}; {0, 0} if the
-- attempt is not held
if not redis.call('ZSCORE', attempts, attempt) or redis.call('HEXISTS', sessions, 'idle') == 0 then return {0, 0} end
redis.call('ZADD', sessions_ready, 'XX', now_ms(), id)
local accepted = tonumber(redis.call('HGET', order, 'accepted') or '0')
redis.call('HSETNX', sessions, 'refused_at', accepted)
if redis.call('HGET', sessions, 'refused_by') ~= attempt then
  redis.call('HSET', sessions, 'refused_by', attempt)
  redis.call('HINCRBY', sessions, 'refused', 1)
end
local s = hash_fields(sessions, 'refused', 'refused_at')
return {tonumber(s.refused), accepted > tonumber(s.refused_at) and 1 or 0}
