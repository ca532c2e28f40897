-- A worker cannot load the version of the open evaluation: end that, if nobody can, and open the next.
-- Invariants: another one than the one meant stays as it is; so does one for which a worker has a seat that has
-- not said the same: it may serve the version.
-- KEYS evaluation queue requests ended returned attempts held seats   ARGV id worker reason
-- Reply 1 failed, 0 not open, or another worker may answer it
local id, worker, reason = unpack(ARGV)
if redis.call('HGET', KEYS[1], 'id') ~= id then return 0 end
redis.call('HSET', KEYS[1], 'cannot:' .. worker, 1)
for _, seated in ipairs(redis.call('ZRANGEBYSCORE', KEYS[8], '(' .. now_ms(), '+inf')) do
  if redis.call('HEXISTS', KEYS[1], 'cannot:' .. seated) == 0 then return 0 end
end
end_evaluation(KEYS, id, 'failed', reason)
return 1
