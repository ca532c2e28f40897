-- Put a run that is written into its pool's queue, unless it is queued or active already.
-- KEYS active queue
-- ARGV run score
-- Reply 1 queued, 0 it was queued or active
if redis.call('GET', active) == run then return 0 end
return redis.call('ZADD', queue, 'NX', score, run)
