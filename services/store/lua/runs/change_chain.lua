-- Write, change or delete a chain, and list it while it is not over.
-- Invariant: a chain changes only from what the caller has read; a chain that is not over is listed
-- in `open`. Repeating a call whose reply was lost changes nothing and replies 1.
-- KEYS chains open   ARGV id old('' none) new('' deletes it) open(1/0)
-- Reply 1 it is as `new` says, 0 another caller has changed it
local chains, open = unpack(KEYS)
local found = redis.call('HGET', chains, ARGV[1]) or ''
if found ~= ARGV[2] and found ~= ARGV[3] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', chains, ARGV[1])
else
  redis.call('HSET', chains, ARGV[1], ARGV[3])
end
redis.call(ARGV[4] == '1' and 'SADD' or 'SREM', open, ARGV[1])
return 1
