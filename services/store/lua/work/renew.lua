-- Move the deadline of attempts that are still held.
-- Invariant: an attempt that is gone stays gone; a lapsed one may be renewed only while no one
-- has been handed its task.
-- KEYS attempts   ARGV ttl_ms attempt...   Reply the attempts that are lost
also_when_full(KEYS[1])
local deadline = now_ms() + tonumber(ARGV[1])
local lost = {}
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], 'XX', deadline, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
