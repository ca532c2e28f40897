-- List the workers of a pool, and forget those that were silent for too long.
-- Invariant: a worker is in both keys or in neither.
-- O(workers).
-- KEYS workers heartbeats
-- ARGV silence_ms
-- Reply {now_ms, record, heartbeat_ms, record, heartbeat_ms, ...}
local now = now_ms()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', heartbeats, '-inf', now - tonumber(silence_ms))) do
  redis.call('HDEL', workers, id)
  redis.call('ZREM', heartbeats, id)
end
-- Redis' clock was set back: a living worker sends its next heartbeat within a second.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', heartbeats, now + 1000, '+inf')) do
  also_when_full(heartbeats)
  redis.call('ZADD', heartbeats, now, id)
end
local reply = {string.format('%d', now)}
local beats = redis.call('ZRANGE', heartbeats, 0, -1, 'WITHSCORES')
for i = 1, #beats, 2 do
  reply[#reply + 1] = redis.call('HGET', workers, beats[i])
  reply[#reply + 1] = beats[i + 1]
end
return reply
