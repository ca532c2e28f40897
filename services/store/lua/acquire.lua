-- A learner takes over a run: new epoch (fencing token), new lineage.
-- Invariant: at most one epoch is current, and it is the newest; what older ones still try is
-- refused. No lease is granted under the new lineage before its first version is published,
-- because workers learn the lineage from its manifest.
-- KEYS run groups   ARGV lineage   Reply the epoch
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'lineage', ARGV[1])
if redis.call('EXISTS', KEYS[2]) == 0 or #redis.call('XINFO', 'GROUPS', KEYS[2]) == 0 then
  redis.call('XGROUP', 'CREATE', KEYS[2], 'learner', '0', 'MKSTREAM')
end
return epoch
