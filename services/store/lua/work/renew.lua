-- Move the deadlines of attempts that are still held, or of a worker's seat in an evaluation.
-- Invariant: a lapsed attempt may be renewed until it is ended; an attempt that has ended is never renewed.
-- KEYS deadlines
-- ARGV ttl_ms members...
-- Reply the attempts that have ended
also_when_full(deadlines)
local deadline = now_ms() + ttl_ms
local lost = {}
for _, member in ipairs(members) do
  if redis.call('ZSCORE', deadlines, member) then
    redis.call('ZADD', deadlines, 'XX', deadline, member)
  else
    lost[#lost + 1] = member
  end
end
return lost
