-- Mark a run that is over as about to be deleted.
-- Invariant: a deletion marks the run first and then looks which runs need it; a submission lists
-- its run first and then looks whether the runs that it needs are marked. So one sees the other.
-- KEYS run   Reply 1, or 0 where it is not over, or gone
local state = redis.call('HGET', KEYS[1], 'state')
if not state or not final(state) then return 0 end
also_when_full(KEYS[1])
redis.call('HSET', KEYS[1], 'deleting', 1)
return 1
