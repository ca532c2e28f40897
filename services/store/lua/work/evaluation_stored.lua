-- Delete the answers that are durable on the data volume, in the part with this number.
-- Invariants: fenced. Parts are counted in order: if a learner dies between the file and this call, its successor
-- writes the same part again.
-- KEYS run evaluation_requests evaluation_parts evaluation_answers
-- ARGV fencing_token id part rows...
-- Reply 1 done, 0 the evaluation is missing, -1 fenced
if fenced(run, fencing_token) then return -1 end
if redis.call('HEXISTS', evaluation_requests, id) == 0 then return 0 end
if tonumber(redis.call('HGET', evaluation_parts, id) or '0') >= tonumber(part) then return 1 end
also_when_full(run)
redis.call('HSET', evaluation_parts, id, part)
for _, row in ipairs(rows) do redis.call('HDEL', evaluation_answers, id .. ' ' .. row) end
return 1
