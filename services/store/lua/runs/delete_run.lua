-- Delete all keys of a run that is over. Their memory is freed in the background.
-- Invariant: the run's state is final.
-- KEYS run ...
-- Reply 1 deleted, or gone already, 0 the run is not over
local state = redis.call('HGET', run, 'state')
if state and not final(state) then return 0 end
redis.call('UNLINK', unpack(KEYS))
return 1
