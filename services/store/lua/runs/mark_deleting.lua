-- Mark a run that is over as about to be deleted.
-- Invariant: a deletion marks the run, then looks for runs that need it; a submission lists its run, then looks
-- whether the runs that it needs are marked. So at least one of the two sees the other.
-- KEYS run
-- Reply 1 marked, 0 the run is not over, or gone
local state = redis.call('HGET', run, 'state')
if not state or not final(state) then return 0 end
also_when_full(run)
redis.call('HSET', run, 'deleting', 1)
return 1
