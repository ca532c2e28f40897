-- Register a version whose files are durable.
-- Invariants: fenced. The manifest carries the run's current lineage. A version exists exactly when its manifest
-- is in this stream, once.
-- KEYS run weights
-- ARGV fencing_token version lineage manifest keep
-- Reply the entry's id, or -1 fenced
if fenced(run, fencing_token) or redis.call('HGET', run, 'lineage') ~= lineage then return -1 end
local newest = redis.call('XREVRANGE', weights, '+', '-', 'COUNT', 1)[1]
if newest and entry_fields(newest).manifest == manifest then return newest[1] end
redis.call('HSET', run, 'version', version)
return redis.call('XADD', weights, 'MAXLEN', '~', keep, '*', 'manifest', manifest)
