-- Forget an evaluation that has been reported, or that nobody will wait for.
-- Invariant: another evaluation than the one meant stays as it is.
-- KEYS evaluation returned attempts held results   ARGV id   Reply 1 forgotten, 0 not there
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then return 0 end
return redis.call('DEL', unpack(KEYS)) > 0 and 1 or 0
