-- Move the deadlines of a worker's seat and of the rows that it still holds.
-- Invariant: what is gone stays gone.
-- KEYS attempts seats   ARGV worker ttl_ms attempt...
also_when_full(KEYS[1])
local deadline = now_ms() + tonumber(ARGV[2])
redis.call('ZADD', KEYS[2], 'XX', deadline, ARGV[1])
for i = 3, #ARGV do redis.call('ZADD', KEYS[1], 'XX', deadline, ARGV[i]) end
return 0
