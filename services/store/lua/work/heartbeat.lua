-- Record that a worker is alive, and its state, at Redis' own time.
-- Invariant: a worker is in both keys or in neither.
-- KEYS workers heartbeats
-- ARGV worker record
-- Reply 1
also_when_full(workers)
redis.call('HSET', workers, worker, record)
redis.call('ZADD', heartbeats, now_ms(), worker)
return 1
