-- End attempts at rows of an evaluation without answers, and return their rows. With `worker`, remove its seat.
-- Invariant: only held rows are returned.
-- KEYS evaluation_returned evaluation_attempts evaluation_held evaluation_seats
-- ARGV worker ('' to keep its seat) attempt...
for i = 2, #ARGV do
  local row = end_attempt(evaluation_attempts, evaluation_held, ARGV[i])
  if row then redis.call('LPUSH', evaluation_returned, row) end
end
if ARGV[1] ~= '' then redis.call('ZREM', evaluation_seats, ARGV[1]) end
return 0
