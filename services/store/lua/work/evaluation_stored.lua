-- Delete the answers that are durable on the data volume, in the part with this number.
-- Invariants: fenced. Parts are counted in order: if a learner dies between the file and this call, its successor
-- writes the same part again.
-- KEYS run evaluation_requests evaluation_parts evaluation_answers
-- ARGV fencing_token id part row...
-- Reply 1 done, 0 the evaluation is missing, -1 fenced
local token, id, part = unpack(ARGV, 1, 3)
if fenced(run, token) then return -1 end
if redis.call('HEXISTS', evaluation_requests, id) == 0 then return 0 end
if tonumber(redis.call('HGET', evaluation_parts, id) or '0') >= tonumber(part) then return 1 end
also_when_full(run)
redis.call('HSET', evaluation_parts, id, part)
for i = 4, #ARGV do redis.call('HDEL', evaluation_answers, id .. ' ' .. ARGV[i]) end
return 1
