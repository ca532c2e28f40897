-- Say of a run that is over that it is about to be deleted.
-- Invariant: whoever deletes a run says so first and then looks who needs it; whoever submits one
-- is listed first and then looks whether what it needs is about to go. So one of them sees the other.
-- KEYS run   Reply 1, or 0 where it is not over, or gone
local state = redis.call('HGET', KEYS[1], 'state')
if not state or not final(state) then return 0 end
redis.call('HSET', KEYS[1], 'deleting', 1)
return 1
