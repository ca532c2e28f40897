-- Add to a number that the ranks of a learner share.
-- Invariant: a call adds once, even if it is repeated because its reply was lost: a field of the call keeps its sum.
-- KEYS ranks
-- ARGV field amount call seconds_kept
-- Reply the sum
local done = 'added:' .. call
local sum = redis.call('HGET', ranks, done)
if sum then return tonumber(sum) end
sum = redis.call('HINCRBY', ranks, field, amount)
redis.call('HSET', ranks, done, sum)
redis.call('EXPIRE', ranks, seconds_kept)
return sum
