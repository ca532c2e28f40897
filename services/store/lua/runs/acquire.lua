-- Give a run to a learner: a new fencing token and a new lineage.
-- Invariants: only the newest token is current; Redis refuses the changes of learners with older ones. `lineages`
-- lists every lineage with the version it began at, also lineages that never made a checkpoint: their groups may
-- still be in the stream. No task is leased under the new lineage before its first version is published, because
-- workers learn the lineage from the manifest.
-- KEYS run groups lineages
-- ARGV lineage
-- Reply the token, or 0 if the run is missing
local r = hash_fields(run, 'state', 'lineage', 'committed_step')
if not r.state then return 0 end
local token = redis.call('HINCRBY', run, 'fencing_token', 1)
-- A call that is repeated because its reply was lost names the same lineage.
if r.lineage ~= lineage then
  redis.call('HSET', run, 'lineage', lineage)
  redis.call('RPUSH', lineages, lineage .. ':' .. (r.committed_step or '0'))
end
if redis.call('EXISTS', groups) == 0 or #redis.call('XINFO', 'GROUPS', groups) == 0 then
  redis.call('XGROUP', 'CREATE', groups, 'learner', '0', 'MKSTREAM')
end
return token
