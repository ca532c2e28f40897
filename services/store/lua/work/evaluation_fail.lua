-- Note that a worker cannot load the version of the open evaluation. End the evaluation if no worker can, and open
-- the next.
-- Invariants: no other evaluation changes. The evaluation goes on while a worker with a seat has not failed: it may
-- serve the version.
-- KEYS evaluation evaluation_queue evaluation_requests evaluation_ended evaluation_returned
-- KEYS evaluation_attempts evaluation_held evaluation_seats
-- ARGV id worker reason
-- Reply 1 the evaluation ended, 0 it is not open, or goes on
if redis.call('HGET', evaluation, 'id') ~= id then return 0 end
redis.call('HSET', evaluation, 'cannot:' .. worker, 1)
for _, seated in ipairs(redis.call('ZRANGEBYSCORE', evaluation_seats, '(' .. now_ms(), '+inf')) do
  if redis.call('HEXISTS', evaluation, 'cannot:' .. seated) == 0 then return 0 end
end
end_evaluation(evaluation, evaluation_queue, evaluation_requests, evaluation_ended, evaluation_returned,
  evaluation_attempts, evaluation_held, id, 'failed', reason)
return 1
