-- Take the pool's active run. Without an active run, the first run of the queue becomes active.
-- Invariants: a pool has at most one active run. A run leaves the queue only by becoming active or cancelled.
-- KEYS active queue
-- Reply the run's id, or ''
local present = redis.call('GET', active)
if present then return present end
local first = redis.call('ZPOPMIN', queue)
if #first == 0 then return '' end
redis.call('SET', active, first[1])
return first[1]
