-- Register a version whose files are durable.
-- Invariants: fenced; the manifest carries the run's current lineage; a version exists exactly
-- when it stands in this stream, once.
-- KEYS run weights   ARGV fencing_token version lineage manifest keep   Reply entry id, or '' if fenced
if fenced(KEYS[1], ARGV[1]) then return '' end
if redis.call('HGET', KEYS[1], 'lineage') ~= ARGV[3] then return '' end
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
if newest and newest[2][2] == ARGV[4] then return newest[1] end
redis.call('HSET', KEYS[1], 'version', ARGV[2])
return redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', 'manifest', ARGV[4])
