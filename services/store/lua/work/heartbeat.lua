-- A worker says that it lives, and how it is; the time is Redis' own.
-- Invariant: a worker stands in both keys or in neither.
-- KEYS workers heartbeats   ARGV worker record   Reply 1
also_when_full(KEYS[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now_ms(), ARGV[1])
return 1
