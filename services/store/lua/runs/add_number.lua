-- Add to a number that the ranks of a learner share.
-- Invariant: a call adds once, also where it is repeated because its reply was lost: a field of this call
-- alone keeps the sum that it replied.
-- KEYS ranks   ARGV field amount call seconds_kept   Reply the sum
local done = 'added:' .. ARGV[3]
local sum = redis.call('HGET', KEYS[1], done)
if sum then return tonumber(sum) end
sum = redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[1], done, sum)
redis.call('EXPIRE', KEYS[1], ARGV[4])
return sum
