-- Note that a live session could not be handed in, and have all others that are ready leased before it.
-- Invariants: an attempt counts once, and only while it is held. `others`: whether a group of the run was accepted
-- since the session was first refused, by whichever worker.
-- KEYS session ready order attempts   ARGV id attempt   Reply {how often, others 1 or 0}; {0, 0}: it is not held
local session, ready, order, attempts = unpack(KEYS)
if not redis.call('ZSCORE', attempts, ARGV[2]) or redis.call('HEXISTS', session, 'idle') == 0 then return {0, 0} end
redis.call('ZADD', ready, 'XX', now_ms(), ARGV[1])
local accepted = tonumber(redis.call('HGET', order, 'accepted') or '0')
redis.call('HSETNX', session, 'refused_at', accepted)
if redis.call('HGET', session, 'refused_by') ~= ARGV[2] then
  redis.call('HSET', session, 'refused_by', ARGV[2])
  redis.call('HINCRBY', session, 'refused', 1)
end
local s = redis.call('HMGET', session, 'refused', 'refused_at')
return {tonumber(s[1]), accepted > tonumber(s[2]) and 1 or 0}
