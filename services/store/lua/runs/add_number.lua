-- Add to a number that the ranks of a learner share.
-- Invariant: a call adds once, even if it is repeated because its reply was lost: a field of the call keeps its sum.
-- KEYS ranks
-- ARGV field amount call seconds_kept
-- Reply the sum
local done = 'added:' .. ARGV[3]
local sum = redis.call('HGET', ranks, done)
if sum then return tonumber(sum) end
sum = redis.call('HINCRBY', ranks, ARGV[1], ARGV[2])
redis.call('HSET', ranks, done, sum)
redis.call('EXPIRE', ranks, ARGV[4])
return sum
