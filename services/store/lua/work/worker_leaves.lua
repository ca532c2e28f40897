-- Remove a worker that stops.   Invariant: it stands in both keys or in neither.
-- KEYS workers heartbeats   ARGV worker   Reply 1 it was listed, 0 it was not
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
