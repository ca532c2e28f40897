-- Forget an evaluation that was reported, or that nobody waits for.
-- Invariants: fenced. No other evaluation changes. A repeated call changes nothing.
-- KEYS run evaluation evaluation_queue evaluation_requests evaluation_ended evaluation_returned
-- KEYS evaluation_attempts evaluation_held evaluation_parts evaluation_answers
-- ARGV fencing_token id rows...
--   rows: whose answers may still be in Redis
-- Reply 1 forgotten, 0 the evaluation is missing, -1 fenced
if fenced(run, fencing_token) then return -1 end
also_when_full(run)
if redis.call('HDEL', evaluation_requests, id) == 0 then return 0 end
redis.call('HDEL', evaluation_ended, id)
redis.call('HDEL', evaluation_parts, id)
redis.call('LREM', evaluation_queue, 0, id)
for _, row in ipairs(rows) do redis.call('HDEL', evaluation_answers, id .. ' ' .. row) end
if redis.call('HGET', evaluation, 'id') == id then
  redis.call('DEL', evaluation, evaluation_returned, evaluation_attempts, evaluation_held)
  open_evaluation(evaluation, evaluation_queue, evaluation_requests, evaluation_returned)
end
return 1
