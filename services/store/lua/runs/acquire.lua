-- A learner takes over a run: new fencing token, new lineage.
-- Invariants: at most one token is current, and it is the newest; what older ones still try is
-- refused. `lineages` lists every lineage there ever was with the version it began at, also
-- those that died before a checkpoint: groups that they sampled may still be in the stream.
-- No lease is granted under the new lineage before its first version is published, because
-- workers learn the lineage from its manifest.
-- KEYS run groups lineages   ARGV lineage   Reply the token, or 0 where there is no such run
local run, groups, lineages = unpack(KEYS)
local found = redis.call('HMGET', run, 'state', 'lineage', 'committed_step')
if not found[1] then return 0 end
local token = redis.call('HINCRBY', run, 'fencing_token', 1)
-- The same lineage again is a call repeated because its reply was lost.
if found[2] ~= ARGV[1] then
  redis.call('HSET', run, 'lineage', ARGV[1])
  redis.call('RPUSH', lineages, ARGV[1] .. ':' .. (found[3] or '0'))
end
if redis.call('EXISTS', groups) == 0 or #redis.call('XINFO', 'GROUPS', groups) == 0 then
  redis.call('XGROUP', 'CREATE', groups, 'learner', '0', 'MKSTREAM')
end
return token
