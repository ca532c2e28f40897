-- Move the deadlines of attempts that are still held, or of a worker's seat in an evaluation.
-- Invariant: a lapsed attempt may be renewed until it is ended; an attempt that has ended is never renewed.
-- KEYS deadlines
-- ARGV ttl_ms attempt...
-- Reply the attempts that have ended
also_when_full(deadlines)
local deadline = now_ms() + tonumber(ARGV[1])
local lost = {}
for i = 2, #ARGV do
  if redis.call('ZSCORE', deadlines, ARGV[i]) then
    redis.call('ZADD', deadlines, 'XX', deadline, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
