-- Record the answers to one row of the open evaluation.
-- Invariants: a row is answered once, by the attempt that holds it. With its last row the evaluation ends, and the
-- next one opens.
-- KEYS evaluation evaluation_queue evaluation_requests evaluation_ended evaluation_returned
-- KEYS evaluation_attempts evaluation_held evaluation_answers
-- ARGV id attempt answers
-- Reply 1 accepted, 0 discarded
local e = hash_fields(evaluation, 'id', 'rows')
if e.id ~= id or not redis.call('ZSCORE', evaluation_attempts, attempt) then return 0 end
-- A full Redis refuses this write, before anything has changed.
redis.call('HSET', evaluation_answers, id .. ' ' .. redis.call('HGET', evaluation_held, attempt), answers)
end_attempt(evaluation_attempts, evaluation_held, attempt)
if redis.call('HINCRBY', evaluation, 'answered', 1) == tonumber(e.rows) then
  end_evaluation(evaluation, evaluation_queue, evaluation_requests, evaluation_ended, evaluation_returned,
    evaluation_attempts, evaluation_held, id, 'done', '')
end
return 1
