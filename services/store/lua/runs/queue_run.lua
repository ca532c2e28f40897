-- Put a run that is written into its pool's queue, unless it is there, or is the active one.
-- KEYS active queue   ARGV run score   Reply 1 it was missing, 0 not
if redis.call('GET', KEYS[1]) == ARGV[1] then return 0 end
return redis.call('ZADD', KEYS[2], 'NX', ARGV[2], ARGV[1])
