-- End attempts at rows of an evaluation without answers, and return their rows. With `worker`, remove its seat.
-- Invariant: only held rows are returned.
-- KEYS evaluation_returned evaluation_attempts evaluation_held evaluation_seats
-- ARGV worker names...
--   worker: '' to keep its seat. names: of the attempts
for _, attempt in ipairs(names) do
  local row = end_attempt(evaluation_attempts, evaluation_held, attempt)
  if row then redis.call('LPUSH', evaluation_returned, row) end
end
if worker ~= '' then redis.call('ZREM', evaluation_seats, worker) end
return 0
