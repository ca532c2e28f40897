-- Forget a run that is over.
-- Invariant: only of a run whose state is final. What it held is freed in the background.
-- KEYS run, and all its others   Reply 1, or 0 where it is not over; 1 also where it is gone
local state = redis.call('HGET', KEYS[1], 'state')
if state and not final(state) then return 0 end
redis.call('UNLINK', unpack(KEYS))
return 1
