-- The workers of a pool; those that were silent for too long are forgotten.
-- Invariant: a worker stands in both keys or in neither.
-- O(workers).
-- KEYS workers heartbeats   ARGV silence_ms
-- Reply {now_ms, record, heartbeat_ms, record, heartbeat_ms, ...}
local workers, heartbeats = unpack(KEYS)
local now = now_ms()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', heartbeats, '-inf', now - tonumber(ARGV[1]))) do
  redis.call('HDEL', workers, id)
  redis.call('ZREM', heartbeats, id)
end
-- Redis' clock has gone back: one that lives sends its next heartbeat within a second.
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
