-- Forget answers that are durable on the data volume, in the part with this number.
-- Invariants: fenced; parts are counted in order, so that a learner that died between file and
-- call has its successor write the same part again.
-- KEYS run requests parts answers   ARGV fencing_token id part row...
-- Reply 1 done, 0 not there, -1 fenced
local run, requests, parts, answers = unpack(KEYS)
if fenced(run, ARGV[1]) then return -1 end
if redis.call('HEXISTS', requests, ARGV[2]) == 0 then return 0 end
if tonumber(redis.call('HGET', parts, ARGV[2]) or '0') >= tonumber(ARGV[3]) then return 1 end
also_when_full(run)
redis.call('HSET', parts, ARGV[2], ARGV[3])
for i = 4, #ARGV do redis.call('HDEL', answers, ARGV[2] .. ' ' .. ARGV[i]) end
return 1
