-- Note that a live session could not be handed in, and have all others that are ready leased before it.
-- KEYS session ready   ARGV id   Reply how often that was so
local session, ready = unpack(KEYS)
redis.call('ZADD', ready, 'XX', now_ms(), ARGV[1])
if redis.call('HEXISTS', session, 'idle') == 0 then return 0 end
return redis.call('HINCRBY', session, 'refused', 1)
