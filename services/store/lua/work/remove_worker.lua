-- Remove a worker that stops.
-- Invariant: a worker is in both keys or in neither.
-- KEYS workers heartbeats
-- ARGV worker
-- Reply 1 it was listed, 0 it was not
redis.call('ZREM', heartbeats, worker)
return redis.call('HDEL', workers, worker)
