-- The pool's active run, or else the first of its queue, which becomes the active one.
-- Invariant: a pool has at most one active run; a run leaves the queue only by becoming active
-- or by being cancelled.   KEYS active queue   Reply run id or ''
local active = redis.call('GET', KEYS[1])
if active then return active end
local first = redis.call('ZPOPMIN', KEYS[2])
if #first == 0 then return '' end
redis.call('SET', KEYS[1], first[1])
return first[1]
